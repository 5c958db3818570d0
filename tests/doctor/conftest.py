from tests.build.server import server

__all__ = ["server"]
