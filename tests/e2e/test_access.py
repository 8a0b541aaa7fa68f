# SPDX-License-Identifier: Apache-2.0
"""One table: every method and every credential that a caller can show."""
import re
import signal
import time
import urllib.request

import grpc
import pytest

from certificates import Authority, Folder, TlsServer
from keys import ADMIN_KEY, bearer, digest
from methods import DESCRIPTORS, UNKNOWN, outcome
from serving import CALL_S, Server, failure, generate, greedy
from stubs import pb, pb_grpc

TENANT, ADMIN, KNOWN, OPEN = "tenant", "admin", "known", "open"

# A method that is not here fails the test of the table: say who may call it.
NEEDS = {
    "millrace.v1.InferenceService/Generate": TENANT,
    "millrace.v1.InferenceService/GenerateUnary": TENANT,
    "millrace.v1.InferenceService/Abort": TENANT,
    "millrace.v1.InferenceService/Tokenize": TENANT,
    "millrace.v1.InferenceService/Detokenize": TENANT,
    "millrace.v1.InferenceService/GetModel": TENANT,
    "millrace.v1.AdminService/GetLoad": ADMIN,
    "millrace.v1.AdminService/LoadAdapter": ADMIN,
    "millrace.v1.AdminService/UnloadAdapter": ADMIN,
    "millrace.v1.AdminService/ListAdapters": ADMIN,
    "millrace.v1.AdminService/ResetPrefixCache": ADMIN,
    "millrace.v1.AdminService/Drain": ADMIN,
    "grpc.health.v1.Health/Check": OPEN,
    "grpc.health.v1.Health/Watch": OPEN,
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": KNOWN,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": KNOWN,
    UNKNOWN: KNOWN,
}
DRAIN = "millrace.v1.AdminService/Drain"

NOBODY, ADA, OPS, WRONG = "nobody", "tenant", "admin", "wrong"
YES, UNAUTHENTICATED, DENIED = None, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
ALLOWED = {
    #         TENANT           ADMIN            KNOWN            OPEN
    NOBODY: (UNAUTHENTICATED, UNAUTHENTICATED, UNAUTHENTICATED, YES),
    WRONG: (UNAUTHENTICATED, UNAUTHENTICATED, UNAUTHENTICATED, YES),
    ADA: (YES, DENIED, YES, YES),
    OPS: (DENIED, YES, YES, YES),
}

KEYS = {"ada": "key-of-ada", "ada2": "second-key-of-ada", "bob": "key-of-bob"}
# name: (certificate, metadata, whom that makes the caller)
CREDENTIALS = {
    "none": (None, [], NOBODY),
    "unknown key": (None, bearer("key-of-eve"), WRONG),
    "empty": (None, [("authorization", "")], WRONG),
    "key without its scheme": (None, [("authorization", KEYS["ada"])], WRONG),
    "key in another scheme": (None, bearer(KEYS["ada"], "Basic "), WRONG),
    "digest of a key": (None, bearer(digest(KEYS["ada"])), WRONG),
    "key and more": (None, bearer(KEYS["ada"] + "x"), WRONG),
    "half a key": (None, bearer(KEYS["ada"][:-1]), WRONG),
    "key sent twice": (None, bearer(KEYS["ada"]) + bearer(KEYS["ada"]), WRONG),
    "endless key": (None, bearer("x" * 4096), WRONG),
    "tenant's key": (None, bearer(KEYS["ada"]), ADA),
    "tenant's second key": (None, bearer(KEYS["ada2"]), ADA),
    "scheme in lower case": (None, bearer(KEYS["ada"], "bearer "), ADA),
    "other tenant's key": (None, bearer(KEYS["bob"]), ADA),
    "administrator's key": (None, bearer(ADMIN_KEY), OPS),
    "certificate of nobody": ("proxy", [], NOBODY),
    "certificate of a tenant, URI": ("ada", [], ADA),
    "certificate of a tenant, DNS name": ("bob", [], ADA),
    "certificate of a tenant, common name": ("old", [], ADA),
    "tenant's common name beside another name": ("disguise", [], NOBODY),
    "tenant's common name beside a mail address": ("mail", [], NOBODY),
    "tenant's common name beside an IP address": ("host", [], NOBODY),
    "certificate of an administrator": ("ops", [], OPS),
    "certificate of two callers": ("both", [], WRONG),
    "certificate of nobody, tenant's key": ("proxy", bearer(KEYS["ada"]), ADA),
    "certificate of nobody, administrator's key": ("proxy", bearer(ADMIN_KEY), OPS),
    "certificate of nobody, unknown key": ("proxy", bearer("key-of-eve"), WRONG),
    "certificate and key of one tenant": ("ada", bearer(KEYS["ada"]), ADA),
    "certificate and key of two tenants": ("ada", bearer(KEYS["bob"]), WRONG),
    "certificate of a tenant, unknown key": ("ada", bearer("key-of-eve"), WRONG),
    "certificate of a tenant, administrator's key": ("ada", bearer(ADMIN_KEY), WRONG),
    "certificate of an administrator, tenant's key": ("ops", bearer(KEYS["ada"]), WRONG),
}
CALLERS = (
    f"tenants=[{{name: ada, keys: [{digest(KEYS['ada'])}, {digest(KEYS['ada2'])}], "
    "identities: ['spiffe://example.org/ada']}, "
    f"{{name: bob, keys: [{digest(KEYS['bob'])}], identities: [bob.example.org, CN=bob of old]}}]",
    "admin.enable=true",
    f"admin.callers=[{{name: ops, keys: [{digest(ADMIN_KEY)}], identities: ['spiffe://example.org/ops']}}]",
)


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, authority):
    made = Folder(tmp_path_factory.mktemp("tls"))
    made.write_server(authority.server(), authority)
    return made


@pytest.fixture(scope="module")
def served(millrace_bin, model_path, authority, folder):
    with TlsServer(authority, millrace_bin, model_path, "max_seq_length=256", *CALLERS,
                   *folder.settings("optional"), metrics=True, health=True) as server:
        yield server


@pytest.fixture(scope="module")
def channels(served, authority):
    pairs = {
        None: None,
        "proxy": authority.issue("proxy", uris=["spiffe://example.org/proxy"]),
        "ada": authority.issue("whatever", uris=["spiffe://example.org/ada"]),
        "bob": authority.issue("", dns=["alias.example.org", "BOB.example.org"]),
        "old": authority.issue("bob of old"),
        "disguise": authority.issue("bob of old", dns=["eve.example.org"]),
        "mail": authority.issue("bob of old", mails=["eve@example.org"]),
        "host": authority.issue("bob of old", ips=["192.0.2.1"]),
        "ops": authority.issue("ops", uris=["spiffe://example.org/ops"]),
        "both": authority.issue("both", uris=["spiffe://example.org/ada", "spiffe://example.org/ops"]),
    }
    opened = {name: served.new_channel(pair=pair) for name, pair in pairs.items()}
    yield opened
    for channel in opened.values():
        channel.close()


def test_every_method_is_in_the_table_G5():
    assert set(NEEDS) == set(DESCRIPTORS) | {UNKNOWN}


def expected(method, who):
    return ALLOWED[who][(TENANT, ADMIN, KNOWN, OPEN).index(NEEDS[method])]


def check(channels, method, name):
    pair, metadata, who = CREDENTIALS[name]
    code, details = outcome(channels[pair], method, metadata)
    wanted = expected(method, who)
    if wanted is YES:
        assert code not in (UNAUTHENTICATED, DENIED), f"{name}: {code} {details}"
    else:
        assert code == wanted, f"{name}: {code} {details}"
        assert "credentials" in details or "authorization" in details or "certificate" in details
        assert not any(key in details for key in (*KEYS.values(), ADMIN_KEY))


@pytest.mark.parametrize("method", NEEDS)
def test_every_method_with_every_credential_G5(channels, method):
    for name, (_, _, who) in CREDENTIALS.items():
        if method != DRAIN or expected(method, who) is not YES:  # who may, drains: see the last test
            check(channels, method, name)


def audit_lines(server, method):
    return re.findall(rf'module=audit msg="(admin call[^"]*)" caller=(\S+) name=(\S+) method="/{re.escape(method)}" '
                      r'status=(\S+) peer="([^"]+)"', server.log)


def wait_for(condition, what):
    end = time.monotonic() + CALL_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_an_administrators_call_leaves_a_line(millrace_bin, model_path):
    """Whatever is logged otherwise, also of methods that are not built; and nothing of the keys."""
    with Server(millrace_bin, model_path, "max_seq_length=256", "log.level=error", CALLERS[1],
                f"admin.callers=[{{name: ops, keys: [{digest(ADMIN_KEY)}]}}]") as server:
        admin = pb_grpc.AdminServiceStub(server.channel)
        for _ in range(7):  # more than a folded line would show
            admin.GetLoad(pb.GetLoadRequest(), metadata=bearer(ADMIN_KEY), timeout=CALL_S)
        failure(lambda *a, **k: admin.ListAdapters(*a, metadata=bearer(ADMIN_KEY), **k), pb.ListAdaptersRequest())
        lines = lambda method: audit_lines(server, f"millrace.v1.AdminService/{method}")
        wait_for(lambda: len(lines("GetLoad")) == 7 and len(lines("ListAdapters")) == 1, "lines are missing")
        for text, caller, name, status, peer in lines("GetLoad"):
            assert (text, caller, name, status) == ("admin call", "admin", "ops", "OK")
            assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", peer)
        assert lines("ListAdapters")[0][3] == "UNIMPLEMENTED"
        # Nobody's generation needs a tenant here, and no administrator either.
        assert generate(server.stub, greedy(1, text="a")).ids
        assert failure(admin.GetLoad, pb.GetLoadRequest()).code() == UNAUTHENTICATED
        assert ADMIN_KEY not in server.log and digest(ADMIN_KEY) not in server.log


def test_refused_calls_of_administrators_methods_are_told(channels, served):
    """By whom, as far as that is known."""
    method = "millrace.v1.AdminService/ResetPrefixCache"
    code, details = outcome(channels[None], method, bearer(KEYS["ada"]))
    assert code == DENIED and "admin.callers" in details
    wait_for(lambda: "admin call refused" in served.log, "no line")
    found = re.findall(r'msg="admin call refused" caller=(\S+) name=(\S+) .*status=(\S+)', served.log)
    assert {("tenant", "ada", "PERMISSION_DENIED"), ("tenant", "bob", "PERMISSION_DENIED"),
            ("unknown", '""', "UNAUTHENTICATED")} & set(found)


def test_metrics_hold_no_names_of_callers_I4(served):
    with urllib.request.urlopen(f"http://{served.metrics}/metrics", timeout=CALL_S) as answer:
        text = answer.read().decode()
    assert "millrace_requests_refused_total" in text
    assert not re.search(r'"(ada|bob|ops)"|example\.org', text)


def test_the_health_listener_has_nothing_else_G6(served):
    """Plaintext, open to everybody; every other method of the table is not there, whatever is shown."""
    with grpc.insecure_channel(served.probes) as channel:
        for method, need in NEEDS.items():
            for metadata in ([], bearer(KEYS["ada"]), bearer(ADMIN_KEY)):
                code, details = outcome(channel, method, metadata)
                if need == OPEN:
                    assert code == grpc.StatusCode.OK, details
                else:
                    assert code == grpc.StatusCode.UNIMPLEMENTED and "probes" in details


def test_reflection_can_be_off_and_the_rest_stays_closed_G5(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=256", "reflection.enable=false") as server:
        for method in NEEDS:
            if "reflection" in method:
                assert outcome(server.channel, method)[0] == grpc.StatusCode.UNIMPLEMENTED


def test_administrators_are_reloaded(millrace_bin, model_path, tmp_path):
    config = tmp_path / "millrace.yaml"

    def write(*keys):
        config.write_text("admin.enable: true\nadmin.callers:\n- {name: ops, keys: ["
                          + ", ".join(digest(key) for key in keys) + "]}\n")
    write("old")
    with Server(millrace_bin, model_path, "max_seq_length=256", config=config) as server:
        get = "millrace.v1.AdminService/GetLoad"
        assert outcome(server.channel, get, bearer("old"))[0] == grpc.StatusCode.OK
        assert outcome(server.channel, get, bearer("new"))[0] == UNAUTHENTICATED
        write("new")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "settings are reloaded" in server.log, "not reloaded")
        assert outcome(server.channel, get, bearer("old"))[0] == UNAUTHENTICATED
        assert outcome(server.channel, get, bearer("new"))[0] == grpc.StatusCode.OK
        config.write_text("admin.enable: true\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "settings are not reloaded" in server.log, "not refused")
        assert outcome(server.channel, get)[0] == UNAUTHENTICATED


@pytest.mark.parametrize("name", [name for name, (_, _, who) in CREDENTIALS.items() if who == OPS])
def test_an_administrator_may_drain_G5(channels, name):
    """The last of this file: whatever Drain does, no other test meets it."""
    check(channels, DRAIN, name)
