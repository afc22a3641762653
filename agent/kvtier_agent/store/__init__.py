"""The block store: index, arena, segments and movers. It knows no Kubernetes."""
