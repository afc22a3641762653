"""A real Kubernetes cluster on one machine: control plane, and nodes in namespaces of their own."""
