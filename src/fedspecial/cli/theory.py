import typer

app = typer.Typer(help="Bounds and certificates.")
