"""Flower's own programs on loopback: processes that always end, keys and certificates for one test."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PROGRAMS = Path(sys.executable).parent
#: In the environment of every process that a test starts, and so of their children, wherever they went.
MARK = "PARETOGRAD_FLOWER_TEST"


class Engine:
    """Starts programs of Flower with a home of their own, offline and quiet, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "RAY_"))},
            MARK: self.mark,
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A program that runs until it is ended; what it prints is in ``<name>.log``."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(PROGRAMS / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd=self.folder,
            )
        self.started.append(process)
        return process

    def call(self, *command: str, timeout: float = 120.0) -> str:
        """A program that ends by itself: all that it prints. Its exit code says little, and is not looked at."""
        done = subprocess.run(
            [str(PROGRAMS / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            cwd=self.folder,
            timeout=timeout,
        )
        return done.stdout + done.stderr

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def connect(self, **settings: str | bool) -> None:
        """Write the connection ``test``, which ``flwr`` uses."""
        values = {name.replace("_", "-"): value for name, value in settings.items()}
        lines = [f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for k, v in values.items()]
        text = "\n".join(['[superlink]\ndefault = "test"\n', "[superlink.test]", *lines, ""])
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def running(self) -> list[psutil.Process]:
        """Every process that carries the mark, however it was started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def end(self) -> None:
        """Ask all of them to end, and then make them."""
        for ask in (psutil.Process.terminate, psutil.Process.kill):
            left = self.running()
            for process in left:
                try:
                    ask(process)
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=10)
        for process in self.started:
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], timeout: float = 60.0) -> None:
    """Until something listens there; not for a process that ended."""
    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}")
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port} after {timeout:g} s")


def make_certificates(folder: Path) -> dict[str, Path]:
    """A certificate authority and a certificate of it for loopback, valid for a day."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    own = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    signed = {
        "ca": _certificate(issuer, issuer, authority, authority, x509.BasicConstraints(ca=True, path_length=None), own),
        "server": _certificate(
            subject,
            issuer,
            key,
            authority,
            x509.BasicConstraints(ca=False, path_length=None),
            names,
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
        ),
    }
    paths = {name: folder / f"{name}.pem" for name in ("ca", "server", "key")}
    for name, certificate in signed.items():
        paths[name].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths["key"].write_bytes(_private(key, serialization.PrivateFormat.PKCS8))
    return paths


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return builder.sign(signer, hashes.SHA256())


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A node's private and public key in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return private, public


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
