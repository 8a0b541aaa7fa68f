# SPDX-License-Identifier: Apache-2.0
"""Certificates made for a test: CAs, servers, clients, good and bad ones."""
import datetime
import ipaddress
import os

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serving import CHANNEL_OPTIONS, Server

DAY = datetime.timedelta(days=1)


def _subject(common):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else [])


def _pem(key):
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption())


class Pair:
    """A certificate and its key, as PEM."""

    def __init__(self, certificate, key):
        self.x509 = certificate
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        self.key = _pem(key)

    @property
    def serial(self):
        return self.x509.serial_number

    @property
    def not_after(self):
        return int(self.x509.not_valid_after_utc.timestamp())


class Authority(Pair):
    def __init__(self, common="test CA"):
        now = datetime.datetime.now(datetime.timezone.utc)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = (x509.CertificateBuilder().subject_name(_subject(common)).issuer_name(_subject(common))
                   .public_key(self._key.public_key()).serial_number(x509.random_serial_number())
                   .not_valid_before(now - DAY).not_valid_after(now + 3650 * DAY)
                   .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True))
        super().__init__(builder.sign(self._key, hashes.SHA256()), self._key)

    def issue(self, common="", uris=(), dns=(), ips=(), mails=(), days=(-1, 365), server=False):
        now = datetime.datetime.now(datetime.timezone.utc)
        key = ec.generate_private_key(ec.SECP256R1())
        names = ([x509.UniformResourceIdentifier(uri) for uri in uris] + [x509.DNSName(name) for name in dns]
                 + [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
                 + [x509.RFC822Name(mail) for mail in mails])
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (x509.CertificateBuilder().subject_name(_subject(common)).issuer_name(self.x509.subject)
                   .public_key(key.public_key()).serial_number(x509.random_serial_number())
                   .not_valid_before(now + days[0] * DAY).not_valid_after(now + days[1] * DAY)
                   .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                   .add_extension(x509.ExtendedKeyUsage([usage]), critical=False))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not common)
        return Pair(builder.sign(self._key, hashes.SHA256()), key)

    def server(self, days=(-1, 365)):
        return self.issue("millrace", dns=["localhost"], ips=["127.0.0.1"], days=days, server=True)


class Folder:
    """Files of certificates as Kubernetes mounts a Secret: links through one that is swapped in one step."""

    def __init__(self, path):
        self.path = path
        self._generation = 0

    def write(self, **files):
        self._generation += 1
        real = self.path / f"..{self._generation}"
        real.mkdir(parents=True)
        for name, content in files.items():
            (real / name).write_bytes(content)
        (self.path / "..new").symlink_to(real.name)
        os.replace(self.path / "..new", self.path / "..data")
        for name in files:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")

    def write_server(self, pair, authority=None):
        files = {"crt": pair.certificate, "key": pair.key}
        if authority is not None:
            files["ca"] = authority.certificate
        self.write(**files)

    def settings(self, client_auth="none"):
        chosen = [f"tls.certificate={self.path / 'crt'}", f"tls.private_key={self.path / 'key'}",
                  "tls.reload_interval_ms=100"]
        if client_auth != "none":
            chosen += [f"tls.client_ca={self.path / 'ca'}", f"tls.client_auth={client_auth}"]
        return chosen


def credentials(authority, pair=None):
    """Of a client that trusts the authority, with a certificate to show or none."""
    return grpc.ssl_channel_credentials(authority.certificate, pair and pair.key, pair and pair.certificate)


class TlsServer(Server):
    """Its own calls, for health, show `pair`."""

    def __init__(self, authority, *args, pair=None, **kwargs):
        self.authority = authority
        self.pair = pair
        super().__init__(*args, **kwargs)

    def new_channel(self, authority=None, pair=None):
        shown = pair or self.pair
        return grpc.secure_channel(self.address, credentials(authority or self.authority, shown),
                                   options=CHANNEL_OPTIONS)
