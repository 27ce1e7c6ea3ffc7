"""The app of the server: the training loop of `fedspecial run`, with the sites as clients."""

from fedspecial.flower import make_server_app

app = make_server_app()
