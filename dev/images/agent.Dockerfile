# Both agents: kvtier-store, and kvtier-node, whose DaemonSet sets user 0 and its own command.
# The context is laid out by dev/images/build.py: dependencies/ (from the lock file), project/, bin/.
# BASE is any image with the Python for which the dependencies were installed.
ARG BASE
FROM ${BASE}
COPY dependencies/ /opt/kvtier/dependencies/
# The root file system is read-only where this runs, so nothing would be compiled later.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kvtier/dependencies
COPY project/ /opt/kvtier/project/
COPY bin/kvtier-store bin/kvtier-node /opt/kvtier/bin/
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kvtier/project
ENV PATH=/opt/kvtier/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    PYTHONPATH=/opt/kvtier/project:/opt/kvtier/dependencies \
    PYTHONUNBUFFERED=1 \
    USER=kvtier \
    HOME=/tmp
USER 64100:64100
CMD ["kvtier-store"]
