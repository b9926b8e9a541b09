"""The server: sessions over HTTP. Needs the extra: pip install 'saveslot[server]'.

`routes.TABLE` lists every route; `call.Call` is what a responder gets; `guard` decides who may call.
"""
