"""A local web page over a folder of runs: ``fedspecial ui``.

It reads the files that runs write anyway and changes nothing. The server is Python's own `http.server`: one user on
one machine needs no framework, and the page then works in every installation without an extra.

- `files`, `tail`: reading files that may be growing, damaged, huge or from a stranger
- `curves`, `runlog`, `audit_log`: what the pages need of an event log and an audit log, in bounded memory
- `index`: the runs of a folder and their states
- `views`: the content of each page as JSON parts
- `server`: the HTTP server
- `static/`: the pages (plain ES modules and CSS, no build step)
"""
