"""The app of a site: it trains on local data, which never leaves the site."""

from fedspecial.flower import make_client_app

app = make_client_app()
