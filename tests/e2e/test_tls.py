# SPDX-License-Identifier: Apache-2.0
"""TLS and mTLS with real clients: who gets a connection, certificates that change under load, and files that must
not start a server."""
import signal
import socket
import ssl
import subprocess
import threading
import time

import grpc
import pytest
from cryptography import x509
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import commands
from certificates import Authority, Folder, TlsServer, credentials
from metrics import Scrape
from serving import CALL_S, failure, generate, greedy
from stubs import pb_grpc

PROMPT = "The river ran"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def folder(tmp_path, authority):
    made = Folder(tmp_path / "tls")
    made.write_server(authority.server(), authority)
    return made


def start(millrace_bin, model_path, authority, settings, pair=None, **kwargs):
    return TlsServer(authority, millrace_bin, model_path, "max_seq_length=1024", *settings, pair=pair, **kwargs)


def code_of(channel):
    """The status of a short generation on a channel of its own, which is closed."""
    with channel:
        try:
            generate(pb_grpc.InferenceServiceStub(channel), greedy(2, text=PROMPT), timeout=20)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def served_serial(address, authority):
    """The serial number of the certificate that a new connection is shown."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=CALL_S) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
            return x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True)).serial_number


def wait_for(condition, what):
    end = time.monotonic() + CALL_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def mutual(millrace_bin, model_path, authority, tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp("mutual"))
    folder.write_server(authority.server(), authority)
    with start(millrace_bin, model_path, authority, folder.settings("require"),
               pair=authority.issue("client")) as server:
        yield server


def test_a_right_certificate_is_served(mutual, authority):
    assert code_of(mutual.new_channel(pair=authority.issue("another client"))) == grpc.StatusCode.OK


def client_pairs(authority):
    stranger = Authority("test CA")  # the same name, another key
    return {
        "of a wrong CA": stranger.issue("client"),
        "expired": authority.issue("client", days=(-20, -10)),
        "not valid yet": authority.issue("client", days=(10, 20)),
        "for servers only": authority.server(),
    }


@pytest.mark.parametrize("name", ["of a wrong CA", "expired", "not valid yet", "for servers only"])
def test_a_bad_certificate_gets_no_connection(mutual, authority, name):
    assert code_of(mutual.new_channel(pair=client_pairs(authority)[name])) == UNAVAILABLE


def test_no_certificate_gets_no_connection(mutual, authority):
    assert code_of(grpc.secure_channel(mutual.address, credentials(authority))) == UNAVAILABLE


def test_plaintext_gets_no_connection(mutual):
    assert code_of(grpc.insecure_channel(mutual.address)) == UNAVAILABLE


def test_a_client_refuses_a_server_of_another_ca(mutual, authority):
    assert code_of(mutual.new_channel(authority=Authority(), pair=authority.issue("client"))) == UNAVAILABLE


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
@pytest.mark.parametrize("version,works", [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True),
                                           (ssl.TLSVersion.TLSv1_3, True)])
def test_versions_of_tls(mutual, authority, tmp_path, version, works):
    pair = authority.issue("client")
    (tmp_path / "pem").write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(tmp_path / "pem")
    host, port = mutual.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=CALL_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                assert works and wrapped.selected_alpn_protocol() == "h2"
        except (ssl.SSLError, ConnectionError):
            assert not works


def test_optional_verifies_what_is_shown(millrace_bin, model_path, authority, folder):
    with start(millrace_bin, model_path, authority, folder.settings("optional")) as server:
        assert code_of(server.new_channel()) == grpc.StatusCode.OK
        assert code_of(server.new_channel(pair=authority.issue("client"))) == grpc.StatusCode.OK
        for pair in client_pairs(authority).values():
            assert code_of(server.new_channel(pair=pair)) == UNAVAILABLE


def test_rotated_under_load_N6(millrace_bin, model_path, authority, folder):
    """Streams go on to their last token, new connections see the new certificate, and no call fails."""
    first, second = authority.server(), authority.server(days=(-1, 30))
    folder.write_server(first, authority)
    with start(millrace_bin, model_path, authority, folder.settings("require"), pair=authority.issue("client"),
               metrics=True) as server:
        assert Scrape(server.metrics).value("millrace_tls_certificate_not_after_timestamp_seconds") == first.not_after
        streams = [server.stub.Generate(greedy(400, text=f"Story {index}:"), timeout=CALL_S) for index in range(3)]
        counts = [len(next(stream).chunks[0].tokens) for stream in streams]
        failed, done, stop = [], [], threading.Event()

        def load():
            while not stop.is_set():
                with server.new_channel() as channel:
                    try:
                        generate(pb_grpc.InferenceServiceStub(channel), greedy(2, text=PROMPT))
                        done.append(1)
                    except grpc.RpcError as error:
                        failed.append(error)
        worker = threading.Thread(target=load)
        worker.start()
        try:
            folder.write_server(second, authority)
            wait_for(lambda: Scrape(server.metrics).value("millrace_tls_reloads_total", result="done") == 1,
                     "never reloaded")
            before = len(done)
            wait_for(lambda: len(done) > before + 1, "no new connections")
        finally:
            stop.set()
            worker.join()
        for index, stream in enumerate(streams):
            for message in stream:
                counts[index] += sum(len(chunk.tokens) for chunk in message.chunks)
            assert stream.code() == grpc.StatusCode.OK
        assert counts == [400, 400, 400] and not failed
        scrape = Scrape(server.metrics)
        assert scrape.value("millrace_tls_certificate_not_after_timestamp_seconds") == second.not_after
        assert scrape.value("millrace_tls_reloads_total", result="failed") == 0
        assert "certificates are reloaded" in server.log


def test_a_new_connection_sees_the_new_certificate_and_a_new_ca_N6(millrace_bin, model_path, authority, folder):
    first, second = authority.server(), authority.server()
    other = Authority("other CA")
    folder.write_server(first, authority)
    client, others = authority.issue("client"), other.issue("client")
    with start(millrace_bin, model_path, authority, folder.settings("optional"), metrics=True) as server:
        assert served_serial(server.address, authority) == first.serial
        assert code_of(server.new_channel(pair=others)) == UNAVAILABLE
        folder.write_server(second, other)
        wait_for(lambda: served_serial(server.address, authority) == second.serial, "still the old certificate")
        assert code_of(server.new_channel(pair=others)) == grpc.StatusCode.OK
        assert code_of(server.new_channel(pair=client)) == UNAVAILABLE


def test_a_resumed_session_does_not_outlive_its_ca(millrace_bin, model_path, authority, tmp_path):
    """A session that was verified against the old CA opens nothing once there is another."""
    other = Authority("other CA")
    folder = Folder(tmp_path / "tls")
    folder.write_server(authority.server(), authority)
    pair = authority.issue("client")
    (tmp_path / "pem").write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # where the session is there when the handshake is over
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(tmp_path / "pem")

    def connect(address, session):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=CALL_S) as plain:
            with context.wrap_socket(plain, server_hostname="localhost", session=session) as wrapped:
                return wrapped.session, wrapped.session_reused

    with start(millrace_bin, model_path, authority, folder.settings("require"), pair=pair, metrics=True) as server:
        session, reused = connect(server.address, None)
        assert not reused
        folder.write_server(authority.server(), other)
        wait_for(lambda: Scrape(server.metrics).value("millrace_tls_reloads_total", result="done") == 1, "no reload")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(server.address, session)


def test_a_resumed_session_does_not_outlive_its_certificate(millrace_bin, model_path, authority, folder):
    """OpenSSL does not look at the dates again, so the server does."""
    cache = [("grpc.ssl_session_cache", cygrpc.SSLSessionCacheLRU(4))]

    def call(server, pair):
        address = server.address.replace("127.0.0.1", "localhost")  # sessions are kept by name
        with grpc.secure_channel(address, credentials(authority, pair), options=cache) as channel:
            try:
                generate(pb_grpc.InferenceServiceStub(channel), greedy(1, text=PROMPT))
            except grpc.RpcError as error:
                return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    with start(millrace_bin, model_path, authority, folder.settings("require"),
               pair=authority.issue("another client")) as server:
        pair = authority.issue("client", days=(-1, 10 / 86400))
        for _ in range(3):
            assert call(server, pair)[0] == grpc.StatusCode.OK
        wait_for(lambda: time.time() > pair.not_after + 1, "the clock stands still")
        code, details = call(server, pair)
        assert code == grpc.StatusCode.UNAUTHENTICATED and "expired" in details


def bad_files(authority):
    good, other = authority.server(), authority.server()
    files = {"crt": good.certificate, "key": good.key, "ca": authority.certificate}
    return {
        "key of another certificate": (files | {"key": other.key}, ["tls.private_key", "made together"]),
        "expired": (files | dict(zip(("crt", "key"), pem(authority.server(days=(-20, -10))))),
                    ["tls.certificate", "expired on"]),
        "not valid yet": (files | dict(zip(("crt", "key"), pem(authority.server(days=(10, 20))))),
                          ["tls.certificate", "is not valid before", "clock"]),
        "no PEM": (files | {"crt": b"\x30\x82\x01"}, ["tls.certificate", "no certificate in PEM"]),
        "empty": (files | {"key": b""}, ["tls.private_key", "no private key in PEM"]),
        "cut off": (files | {"crt": good.certificate + other.certificate[:300]}, ["tls.certificate", "cut off"]),
        "key for a certificate": (files | {"crt": good.key}, ["tls.certificate", "no certificate in PEM"]),
        "CA that is none": (files | {"ca": good.certificate}, ["tls.client_ca", "no CA's"]),
        "CA without PEM": (files | {"ca": b"hello"}, ["tls.client_ca", "no certificate in PEM"]),
    }


def pem(pair):
    return pair.certificate, pair.key


@pytest.mark.parametrize("name", ["key of another certificate", "expired", "not valid yet", "no PEM", "empty",
                                  "cut off", "key for a certificate", "CA that is none", "CA without PEM"])
def test_a_bad_file_aborts_the_start_G6(millrace_bin, model_path, authority, tmp_path, name):
    """Never plaintext: nothing listens, and the line names the setting, the file and the way out."""
    files, says = bad_files(authority)[name]
    folder = Folder(tmp_path / "tls")
    folder.write(**files)
    assert_no_start(millrace_bin, model_path, folder.settings("require"), 1, [*says, str(folder.path)])


def assert_no_start(millrace_bin, model_path, settings, code, says):
    command = [millrace_bin, "serve", "--model", model_path, "--listen", "127.0.0.1:0"]
    for setting in settings:
        command += ["--set", setting]
    done = commands.run(*command)
    assert done.returncode == code and done.stdout == "", done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("millrace: ") and all(word in last for word in says), last


def test_a_missing_file_aborts_the_start_G6(millrace_bin, model_path, folder):
    for name, setting in (("crt", "tls.certificate"), ("key", "tls.private_key"), ("ca", "tls.client_ca")):
        settings = [one.replace(f"/{name}", "/nothing") for one in folder.settings("require")]
        assert_no_start(millrace_bin, model_path, settings, 1, [setting, "/nothing", "check the path"])


def test_half_a_configuration_aborts_the_start_G5_G6(millrace_bin, model_path, folder):
    certificate, key, interval = folder.settings()
    assert_no_start(millrace_bin, model_path, [certificate], 2, ["tls.private_key is missing"])
    assert_no_start(millrace_bin, model_path, [key], 2, ["tls.certificate is missing"])
    assert_no_start(millrace_bin, model_path, [interval], 2, ["tls.reload_interval_ms cannot act"])
    assert_no_start(millrace_bin, model_path, [certificate, key, "tls.client_auth=require"], 2,
                    ["tls.client_ca is missing"])


def test_a_bad_new_file_keeps_the_old_certificate_G6(millrace_bin, model_path, authority, folder):
    """Each is refused once and told; the next good one is taken."""
    first, last = authority.server(), authority.server()
    folder.write_server(first, authority)
    with start(millrace_bin, model_path, authority, folder.settings("optional"), metrics=True) as server:
        def failed():
            return Scrape(server.metrics).value("millrace_tls_reloads_total", result="failed")
        for number, (files, says) in enumerate(bad_files(authority).values(), start=1):
            folder.write(**files)
            wait_for(lambda: failed() == number, f"not refused: {says}")
            assert served_serial(server.address, authority) == first.serial
            line = [one for one in server.log.splitlines() if "certificates are not reloaded" in one][-1]
            assert "level=error" in line and all(word in line for word in says)
        assert Scrape(server.metrics).value("millrace_tls_certificate_not_after_timestamp_seconds") == first.not_after
        folder.write_server(last, authority)
        wait_for(lambda: served_serial(server.address, authority) == last.serial, "the good one is not taken")
        assert failed() == len(bad_files(authority))
        assert generate(server.stub, greedy(2, text=PROMPT)).ids


def test_files_that_change_one_after_the_other(millrace_bin, model_path, authority, tmp_path):
    """Plain files, written in place as some tools do: the moment between is no error."""
    first, second = authority.server(), authority.server()
    (tmp_path / "crt").write_bytes(first.certificate)
    (tmp_path / "key").write_bytes(first.key)
    settings = [f"tls.certificate={tmp_path / 'crt'}", f"tls.private_key={tmp_path / 'key'}",
                "tls.reload_interval_ms=1000", "limits.penalty_ms=0"]
    with start(millrace_bin, model_path, authority, settings, metrics=True) as server:
        (tmp_path / "crt").write_bytes(second.certificate)
        (tmp_path / "key").write_bytes(second.key)
        wait_for(lambda: served_serial(server.address, authority) == second.serial, "still the old certificate")
        assert Scrape(server.metrics).value("millrace_tls_reloads_total", result="failed") == 0


def test_sighup_reloads_at_once(millrace_bin, model_path, authority, folder):
    second = authority.server()
    settings = [one.replace("=100", "=86400000") for one in folder.settings()]
    with start(millrace_bin, model_path, authority, settings, metrics=True) as server:
        folder.write_server(second)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: served_serial(server.address, authority) == second.serial, "still the old certificate")
        wait_for(lambda: "settings are reloaded" in server.log, "tenants were not reloaded")


def test_the_command_line_speaks_tls(millrace_bin, mutual, authority, tmp_path):
    client = authority.issue("client")
    files = {"ca": authority.certificate, "crt": client.certificate, "key": client.key,
             "other": Authority().certificate, "stray": authority.issue("x").key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    def run(*options, command=("generate", "--max-tokens", "2", "Hello")):
        done = subprocess.run([millrace_bin, command[0], *(command[1:2] if command[0] == "bench" else ()), "--server",
                               mutual.address, *options, *command[2 if command[0] == "bench" else 1:]],
                              capture_output=True, text=True, timeout=CALL_S, check=False, cwd=tmp_path,
                              stdin=subprocess.DEVNULL)
        return done.returncode, done.stderr

    shown = ("--tls-ca", "ca", "--tls-cert", "crt", "--tls-key", "key")
    assert run(*shown) == (0, "")
    bench = ("bench", "serve", "--requests", "2", "--prompt-tokens", "4", "--output-tokens", "2", "--json")
    assert run(*shown, command=bench)[0] == 0
    code, said = run("--tls-ca", "ca")
    assert code == 1 and "--tls-cert" in said
    code, said = run()
    assert code == 1 and "--tls-ca" in said
    code, said = run("--tls-ca", "other", "--tls-cert", "crt", "--tls-key", "key")
    assert code == 1 and "not of a CA in --tls-ca" in said
    code, said = run(*shown, "--tls-server-name", "elsewhere")
    assert code == 1 and "--tls-server-name" in said
    assert run(*shown, "--tls-server-name", "localhost")[0] == 0
    code, said = run("--tls-ca", "ca", "--tls-cert", "crt", "--tls-key", "stray")
    assert code == 1 and "--tls-key: 'stray'" in said and "made together" in said
    code, said = run("--tls-ca", "nothing")
    assert code == 1 and "--tls-ca: 'nothing'" in said
    assert run("--tls-ca", "ca", "--tls-cert", "crt")[0] == 2
    assert run("--tls-cert", "crt", "--tls-key", "key")[0] == 2


def test_the_health_listener_stays_plaintext_G6(millrace_bin, model_path, authority, folder):
    """Probes without a certificate, from the first moment, beside a port that wants one."""
    with start(millrace_bin, model_path, authority, folder.settings("require"), pair=authority.issue("client"),
               health=True, ready=False) as server:
        with grpc.insecure_channel(server.probes) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            seen = next(watch).status
            if seen == health_pb2.HealthCheckResponse.NOT_SERVING:
                seen = next(watch).status
            assert seen == health_pb2.HealthCheckResponse.SERVING
            assert health.Check(health_pb2.HealthCheckRequest(service="millrace.v1.InferenceService")).status == seen
            server.terminate()
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert failure(lambda *_, **__: watch, None).code() == UNAVAILABLE
        assert server.wait() == 0


def test_the_health_listener_needs_a_port_of_its_own(server, millrace_bin, model_path):
    done = commands.run(millrace_bin, "serve", "--model", model_path, "--listen", "127.0.0.1:0", "--health-listen",
                        server.address)
    assert done.returncode == 1
    assert "--health-listen" in done.stderr and server.address in done.stderr and "in use" in done.stderr
