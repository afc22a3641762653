"""The project's container images, built on this machine without a registry.

    from dev.images import build_images
    images = build_images()              # {"operator": Image, "agent": Image, "sidecar": Image}
    cluster.load_image(images["agent"].archive)
    images["agent"].reference            # kvtier.local/agent:TAG, for pods with imagePullPolicy IfNotPresent or Never

An image is built again only when the sources, the lock file or its Dockerfile changed. From a shell, `python -m
dev.images` builds them.
"""

from dev.images.build import Image, build_images

__all__ = ["Image", "build_images"]
