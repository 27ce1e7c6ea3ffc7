"""A site: the method's client half, on data that stays here."""

from fedspecial.flower import make_client_app

app = make_client_app()
