"""What the tests of commands have in common with those of programs."""

from tests.programs.conftest import _servers_end, real, real_kubectl

__all__ = ["_servers_end", "real", "real_kubectl"]
