"""The server: the loop of `fedspecial run`, with the sites behind it."""

from fedspecial.flower import make_server_app

app = make_server_app()
