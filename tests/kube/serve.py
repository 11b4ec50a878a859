"""The tests' API server in a process of its own, for clients that are processes, too.

``python -m tests.kube.serve DIR`` serves over TLS on a free port, writes into DIR a kubeconfig
of its admin, ``ca.crt`` and ``port``, in that order, and takes words of the tests at ``/tests``.
"""

import asyncio
import json
import ssl
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.kube.access import MASTERS, User
from tests.kube.discovery import RESOURCES
from tests.kube.server import Fault, Kube

ADMIN = "admin-token"


def kubeconfig(url: str, ca: Path, token: str) -> dict[str, Any]:
    """The configuration that kubectl and helm take; JSON is YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "t", "cluster": {"server": url, "certificate-authority": str(ca)}}],
        "users": [{"name": "t", "user": {"token": token}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "current-context": "t",
    }


async def serve(folder: Path) -> None:
    """Until the process is ended."""
    kube = Kube({ADMIN: User("admin", (MASTERS,))})
    kube.app.router.add_post("/tests", lambda request: _told(kube, request))
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(folder / "ca.crt")
    server = TestServer(kube.app, scheme="https")
    await server.start_server(ssl=context)
    config = kubeconfig(f"https://127.0.0.1:{server.port}", folder / "ca.crt", ADMIN)
    (folder / "kubeconfig").write_text(json.dumps(config))
    (folder / "port.new").write_text(str(server.port))
    (folder / "port.new").rename(folder / "port")
    await asyncio.Event().wait()


async def _told(kube: Kube, request: web.Request) -> web.Response:
    """One word of a test: put in faults, give or take tokens, add an object, tell what was asked."""
    word = await request.json()
    match word["do"]:
        case "fault":
            kube.faults = [Fault(**each) for each in word["faults"]]
        case "token":
            user = word["user"]
            kube.tokens[word["token"]] = User(user["name"], tuple(user["groups"]), user["extra"])
        case "revoke":
            kube.tokens.pop(word["token"], None)
        case "create":
            thing = word["object"]
            resource = next(each for each in RESOURCES if each.kind == thing["kind"])
            namespace = thing["metadata"].get("namespace", "")
            return web.json_response(await kube.storage.create(resource, namespace, thing))
        case "find":
            resource = next(each for each in RESOURCES if each.kind == word["kind"])
            return web.json_response(kube.storage.find(resource, "", word["name"]))
        case "asked":
            return web.json_response([asdict(each) for each in kube.asked])
    return web.json_response({})


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
