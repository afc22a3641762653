"""The resources of kvtier.io: models, and the CRD YAML made from them."""
