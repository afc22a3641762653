"""CSI and plugin registration messages, generated from the two .proto files beside this one.

Generated anew, from the repository root, with:

    python -m grpc_tools.protoc -I agent --python_out=agent --pyi_out=agent --grpc_python_out=agent \
        agent/kvtier_agent/node/csi/csi.proto agent/kvtier_agent/node/csi/registration.proto
"""
