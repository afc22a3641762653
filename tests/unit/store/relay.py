"""An attendant that only relays between its control descriptor and a test's socket: `relay.py SOCKET ...`."""

from __future__ import annotations

import argparse
import selectors
import socket


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("--control-fd", type=int)
    parser.add_argument("--config")
    arguments = parser.parse_args()
    control = socket.socket(fileno=arguments.control_fd)
    test = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    test.connect(arguments.socket)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ, test)
    selector.register(test, selectors.EVENT_READ, control)
    while True:
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if not data:
                return
            key.data.sendall(data)


if __name__ == "__main__":
    main()
