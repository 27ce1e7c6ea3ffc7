"""The server: the loop of `fedspecial run`, with the sites behind it."""

from fedspecial.deploy import make_server_app

app = make_server_app()
