"""A bundle goes to a hub and comes back: the endpoints that huggingface_hub calls, on a server of this machine."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from runs import FACTS, ROOT

from subquad.records import write_json

BUNDLE = ROOT / "docs" / "bundles" / "digits-ecoformer.safetensors"
TOKEN, COMMIT = "hf_writer", "1" * 40


class Hub(HTTPServer):
    """Repositories by name; files by their SHA-256. Who has the token may write, and everyone may read."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.objects = {"someone/empty": {}}, {}
        self.at = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hub, lines = self.server, [json.loads(line) for line in body.splitlines()]
        name = "/".join(self.path.removeprefix("/api/models").split("/")[1:3]).removesuffix(".git")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(403, {"error": "not yours"})
        elif self.path == "/api/repos/create":
            name = f"{lines[0]['organization']}/{lines[0]['name']}"
            hub.repositories.setdefault(name, {})
            self.answer(200, {"url": f"{hub.at}/{name}"})
        elif "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "lfs", "shouldIgnore": False} for file in lines[0]["files"]]
            self.answer(200, {"files": files})
        elif self.path.endswith("/info/lfs/objects/batch"):
            wanted = lines[0]["objects"]
            places = [{**one, "actions": {"upload": {"href": f"{hub.at}/objects/{one['oid']}"}}} for one in wanted]
            self.answer(200, {"transfer": "basic", "objects": places}, Content_Type="application/vnd.git-lfs+json")
        else:
            assert "/commit/main" in self.path
            hub.repositories[name] |= {line["value"]["path"]: line["value"]["oid"] for line in lines[1:]}
            self.answer(200, {"commitUrl": f"{hub.at}/{name}/commit/{COMMIT}", "commitOid": COMMIT})

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == f"/objects/{hashlib.sha256(content).hexdigest()}"
        self.server.objects[self.path.split("/")[-1]] = content
        self.answer(200)

    def do_GET(self):
        if self.path.startswith("/api/models/"):  # whether a repository is there, after a refusal to create it
            return self.answer(404, X_Error_Code="RepoNotFound")
        owner, name, _, revision, file = self.path.strip("/").split("/")
        files = self.server.repositories.get(f"{owner}/{name}")
        if files is None:
            return self.answer(404, X_Error_Code="RepoNotFound")
        if revision not in ("main", COMMIT):
            return self.answer(404, X_Error_Code="RevisionNotFound")
        if file not in files:
            return self.answer(404, X_Error_Code="EntryNotFound")
        return self.answer(200, self.server.objects[files[file]], ETag=f'"{files[file]}"')

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


CALLS = f"""
from pathlib import Path
from subquad.training.hub import download, upload
def tried(call, *given, **named):
    try: print(call(*given, **named))
    except ValueError as error: print(error)
bundle = Path({str(BUNDLE)!r})
"""
ONLINE = """
from subquad import load_pretrained
kind = lambda *given, **named: type(load_pretrained(*given, **named)).__name__
tried(upload, bundle, "someone/digits")
tried(kind, "someone/digits")
tried(kind, "someone/digits", revision="1" * 40)
tried(kind, "someone/digits", revision="v9")
tried(kind, "someone/empty")
tried(kind, "someone/nothing")
tried(upload, bundle, "nowhere")
"""


def said(hub, home, code, **environment):
    local = {
        "HF_ENDPOINT": hub.at, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", CALLS + code],
        env=kept | local | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_bundle_is_uploaded_and_downloaded(hub, tmp_path):
    commit, newest, of_commit, wrong, empty, missing, name = said(hub, tmp_path, ONLINE, HF_TOKEN=TOKEN)
    assert commit == f"{hub.at}/someone/digits/commit/{COMMIT}"
    assert [*hub.objects.values()] == [BUNDLE.read_bytes()]
    assert (newest, of_commit) == ("ViT",) * 2
    assert wrong.startswith("someone/digits has no revision v9; give a branch")
    assert empty == "someone/empty has no model.safetensors; upload one by subquad pack <run> upload=someone/empty."
    assert missing.startswith("The hub has no repository someone/nothing that you may read; check the name")
    assert name.startswith("upload=nowhere is no name of a repository")


@pytest.mark.slow
def test_no_token_a_wrong_one_and_no_network_are_said(hub, tmp_path):
    anonymous = 'tried(upload, bundle, "someone/digits")'
    reader = f'import os; os.environ["HF_TOKEN"] = "hf_reader"; {anonymous}'
    nobody, refused = said(hub, tmp_path, f"{anonymous}\n{reader}")
    assert nobody.startswith("Nobody is logged in to the hub; run `hf auth login`")
    assert "403" in refused
    assert refused.endswith("check that your token (`hf auth whoami`) may do this.")
    code = 'tried(download, "someone/digits"); ' + anonymous
    for environment in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        for line in said(hub, tmp_path, code, HF_TOKEN=TOKEN, **environment):
            assert line.startswith("The hub cannot be reached for someone/digits")
            assert "check the network, and that HF_HUB_OFFLINE is not set" in line


def test_the_command_packs_and_uploads(tmp_path, monkeypatch, capsys):
    from subquad.cli import pack
    from subquad.training import bundle
    from subquad.training import hub as client

    sent = []
    monkeypatch.setattr(bundle, "pack", lambda run, output: shutil.copy(BUNDLE, output))
    monkeypatch.setattr(client, "upload", lambda file, repository: sent.append((file, repository)) or "there")
    output = tmp_path / "a.safetensors"
    monkeypatch.setattr(sys, "argv", ["pack", str(tmp_path), f"output={output}", "upload=someone/digits"])
    pack.main()
    assert sent == [(output, "someone/digits")]
    assert capsys.readouterr().out.endswith("someone/digits: there\n")
    run = tmp_path / "runs" / f"{'0' * 12}-s0"
    write_json(run / "result.json", FACTS)
    monkeypatch.setattr(sys, "argv", ["pack", str(tmp_path)])
    pack.main()
    assert capsys.readouterr().out.startswith(str(run / client.FILE))
