"""`check_port`: whether we may listen where the user says, asked before anything is started."""

import socket

from schemas.errors import SpecmillError


def check_port(address: str, port: int, option: str) -> None:
    """Try a port.

    Args:
        address: where to listen.
        port: on which port.
        option: the one that names another port.

    Raises:
        SpecmillError: it is taken, or not ours to take.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise SpecmillError(f"cannot listen on {address}:{port}: {error.strerror}; {option} takes another one") from error
