/* SPDX-License-Identifier: Apache-2.0 */
#include "service/api_key.h"
#include "service/callers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A tenant a with the key "abc" and a URI, a tenant b with a DNS name and a common name, and an
 * administrator with a key and a URI. */
typedef struct scene {
    mr_tenants *tenants;
    mr_admins admins;
} scene;

static void add_key(mr_credentials *credentials, const char *key)
{
    mr_sha256(key, strlen(key), credentials->keys[credentials->n_keys++]);
}

static void add_identity(mr_credentials *credentials, const char *identity)
{
    assert_int_equal(mr_identity_check(identity, NULL), MR_OK);
    snprintf(credentials->identities[credentials->n_identities++], MR_IDENTITY_MAX + 1, "%s",
             identity);
}

static void make_scene(scene *s)
{
    *s = (scene){.tenants = calloc(1, sizeof(*s->tenants)), .admins = {.count = 1}};
    assert_non_null(s->tenants);
    s->tenants->count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        s->tenants->items[i].name[0] = (char)('a' + i);
        s->tenants->items[i].weight = 1;
    }
    add_key(&s->tenants->items[0].credentials, "abc");
    add_identity(&s->tenants->items[0].credentials, "spiffe://example.org/a");
    add_identity(&s->tenants->items[1].credentials, "b.example.org");
    add_identity(&s->tenants->items[1].credentials, "CN=b client");
    snprintf(s->admins.items[0].name, sizeof(s->admins.items[0].name), "ops");
    add_key(&s->admins.items[0].credentials, "root");
    add_identity(&s->admins.items[0].credentials, "spiffe://example.org/ops");
    assert_int_equal(mr_tenants_check(s->tenants, NULL), MR_OK);
    assert_int_equal(mr_admins_check(&s->admins, NULL), MR_OK);
    assert_int_equal(mr_callers_check(s->tenants, &s->admins, NULL), MR_OK);
}

static mr_proof proof_of(const char *authorization)
{
    return (mr_proof){.authorization = authorization,
                      .authorization_bytes = authorization == NULL ? 0 : strlen(authorization)};
}

static void show(mr_proof *proof, mr_name_kind kind, const char *text, size_t bytes)
{
    proof->peer.names[proof->peer.n_names++] = (mr_peer_name){kind, text, bytes};
}

static void assert_caller(const scene *s, const mr_proof *proof, mr_caller_kind kind,
                          uint32_t index)
{
    mr_caller caller;
    mr_error err = {0};
    if (mr_caller_identify(s->tenants, &s->admins, proof, &caller, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(caller.kind, kind);
    assert_int_equal(caller.index, index);
}

static void assert_refused(const scene *s, const mr_proof *proof, const char *says)
{
    mr_caller caller;
    mr_error err = {0};
    assert_int_equal(mr_caller_identify(s->tenants, &s->admins, proof, &caller, &err),
                     MR_UNAUTHENTICATED);
    assert_non_null(strstr(err.message, says));
    assert_null(strstr(err.message, "hunter2"));
}

static void test_callers_by_key(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    mr_proof proof = proof_of("Bearer abc");
    assert_caller(&s, &proof, MR_CALLER_TENANT, 0);
    proof = proof_of("bEARER abc");
    assert_caller(&s, &proof, MR_CALLER_TENANT, 0);
    proof = proof_of("Bearer root");
    assert_caller(&s, &proof, MR_CALLER_ADMIN, 0);
    proof = proof_of(NULL);
    assert_caller(&s, &proof, MR_CALLER_UNKNOWN, 0);
    static const char *const malformed[] = {"", "Bearer", "Bearer ", "Basic hunter2", "abc"};
    for (size_t i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++) {
        proof = proof_of(malformed[i]);
        assert_refused(&s, &proof, "must be");
    }
    static const char *const unknown[] = {"Bearer hunter2", "Bearer  abc", "Bearer abc ",
                                          "Bearer ab", "Bearer abcd"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        proof = proof_of(unknown[i]);
        assert_refused(&s, &proof, "not known");
    }
    char longest[7 + MR_API_KEY_MAX + 2];
    memset(longest, 'x', sizeof(longest) - 1);
    memcpy(longest, "Bearer ", 7);
    longest[sizeof(longest) - 1] = '\0';
    proof = proof_of(longest);
    assert_refused(&s, &proof, "at most 1024");
    longest[sizeof(longest) - 2] = '\0';
    proof = proof_of(longest);
    assert_refused(&s, &proof, "not known");
    free(s.tenants);
}

static void test_callers_by_certificate(void **state)
{
    (void)state;
    static const char nul[] = "b.example.org\0.evil.example";
    static const struct {
        mr_name_kind kind;
        const char *text;
        size_t bytes; /* 0: the text's */
        mr_caller_kind who;
        uint32_t index;
    } cases[] = {
        {MR_NAME_URI, "spiffe://example.org/a", 0, MR_CALLER_TENANT, 0},
        {MR_NAME_URI, "spiffe://example.org/A", 0, MR_CALLER_UNKNOWN, 0},
        {MR_NAME_URI, "spiffe://example.org/a/", 0, MR_CALLER_UNKNOWN, 0},
        {MR_NAME_URI, "spiffe://example.org/ops", 0, MR_CALLER_ADMIN, 0},
        {MR_NAME_DNS, "b.example.org", 0, MR_CALLER_TENANT, 1},
        {MR_NAME_DNS, "B.Example.ORG", 0, MR_CALLER_TENANT, 1},
        {MR_NAME_DNS, "*.example.org", 0, MR_CALLER_UNKNOWN, 0},
        {MR_NAME_DNS, nul, sizeof(nul) - 1, MR_CALLER_UNKNOWN, 0},
        /* A name of one kind is none of another. */
        {MR_NAME_URI, "b.example.org", 0, MR_CALLER_UNKNOWN, 0},
        {MR_NAME_DNS, "b client", 0, MR_CALLER_UNKNOWN, 0},
        {MR_NAME_COMMON, "b.example.org", 0, MR_CALLER_UNKNOWN, 0},
        {MR_NAME_COMMON, "spiffe://example.org/ops", 0, MR_CALLER_UNKNOWN, 0},
        {MR_NAME_COMMON, "b client", 0, MR_CALLER_TENANT, 1},
        {MR_NAME_COMMON, "CN=b client", 0, MR_CALLER_UNKNOWN, 0},
    };
    scene s;
    make_scene(&s);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_proof proof = proof_of(NULL);
        const size_t bytes = cases[i].bytes != 0 ? cases[i].bytes : strlen(cases[i].text);
        show(&proof, cases[i].kind, cases[i].text, bytes);
        assert_caller(&s, &proof, cases[i].who, cases[i].index);
    }
    free(s.tenants);
}

/* The common name is the last resort; alternative names are all looked at. */
static void test_callers_by_several_names(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    mr_proof proof = proof_of(NULL);
    show(&proof, MR_NAME_DNS, "other.example.org", 17);
    show(&proof, MR_NAME_COMMON, "b client", 8);
    assert_caller(&s, &proof, MR_CALLER_UNKNOWN, 0);
    show(&proof, MR_NAME_URI, "spiffe://example.org/a", 22);
    assert_caller(&s, &proof, MR_CALLER_TENANT, 0);
    show(&proof, MR_NAME_DNS, "b.example.org", 13);
    assert_refused(&s, &proof, "more than one caller");
    /* An alternative name of whatever kind, even one that nobody is known by. */
    proof = proof_of(NULL);
    show(&proof, MR_NAME_COMMON, "b client", 8);
    assert_caller(&s, &proof, MR_CALLER_TENANT, 1);
    show(&proof, MR_NAME_OTHER, "b@example.org", 13);
    assert_caller(&s, &proof, MR_CALLER_UNKNOWN, 0);
    free(s.tenants);
}

/* Both must agree; a certificate of nobody in particular only opens the door. */
static void test_callers_by_key_and_certificate(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    mr_proof proof = proof_of("Bearer abc");
    show(&proof, MR_NAME_URI, "spiffe://example.org/a", 22);
    assert_caller(&s, &proof, MR_CALLER_TENANT, 0);
    proof = proof_of("Bearer abc");
    show(&proof, MR_NAME_DNS, "proxy.example.org", 17);
    assert_caller(&s, &proof, MR_CALLER_TENANT, 0);
    proof = proof_of("Bearer abc");
    show(&proof, MR_NAME_DNS, "b.example.org", 13);
    assert_refused(&s, &proof, "different callers");
    proof = proof_of("Bearer abc");
    show(&proof, MR_NAME_URI, "spiffe://example.org/ops", 24);
    assert_refused(&s, &proof, "different callers");
    proof = proof_of("Bearer hunter2");
    show(&proof, MR_NAME_URI, "spiffe://example.org/a", 22);
    assert_refused(&s, &proof, "not known");
    free(s.tenants);
}

static void test_callers_of_an_open_server_are_unknown(void **state)
{
    (void)state;
    scene s = {.tenants = calloc(1, sizeof(*s.tenants))};
    assert_non_null(s.tenants);
    const mr_proof proof = proof_of("Basic hunter2");
    assert_caller(&s, &proof, MR_CALLER_UNKNOWN, 0);
    free(s.tenants);
}

static void assert_identity_refused(const char *text, const char *says)
{
    mr_error err = {0};
    assert_int_equal(mr_identity_check(text, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, says));
}

static void test_callers_identities_as_they_are_written(void **state)
{
    (void)state;
    static const char *const good[] = {"spiffe://example.org/ns/a/sa/b", "urn:example:a",
                                       "client.example.org", "client", "CN=Client of Ada"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(mr_identity_check(good[i], NULL), MR_OK);
    }
    assert_identity_refused("", "1 to 255 bytes");
    assert_identity_refused("CN=", "1 to 255 bytes");
    assert_identity_refused("*.example.org", "no wildcards");
    assert_identity_refused("ada@example.org", "no wildcards");
    assert_identity_refused("spiffe://example.org/a b", "spaces");
    assert_identity_refused("CN=a\nb", "control characters");
    char longest[MR_IDENTITY_MAX + 2];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_identity_refused(longest, "1 to 255 bytes");
    longest[MR_IDENTITY_MAX] = '\0';
    assert_int_equal(mr_identity_check(longest, NULL), MR_OK);
}

static void assert_admins_refused(const mr_admins *admins, const char *says)
{
    mr_error err = {0};
    assert_int_equal(mr_admins_check(admins, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "admin.callers");
    assert_non_null(strstr(err.message, says));
}

static void test_callers_credentials_are_of_one(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    mr_error err = {0};
    add_key(&s.tenants->items[1].credentials, "root");
    assert_int_equal(mr_callers_check(s.tenants, &s.admins, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "\"ops\" and tenant \"b\" have the same key"));
    s.tenants->items[1].credentials.n_keys = 0;
    add_identity(&s.admins.items[0].credentials, "B.example.org");
    assert_int_equal(mr_callers_check(s.tenants, &s.admins, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "the same identity"));
    add_identity(&s.tenants->items[0].credentials, "b.EXAMPLE.org");
    assert_int_equal(mr_tenants_check(s.tenants, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "have an identity in common"));

    s.admins.items[1] = s.admins.items[0];
    s.admins.count = 2;
    assert_admins_refused(&s.admins, "two administrators have this name");
    s.admins.items[1].name[0] = 'x';
    assert_admins_refused(&s.admins, "administrators \"ops\" and \"xps\" have a key in common: "
                                     "give each its own");
    s.admins.items[1].credentials = (mr_credentials){0};
    assert_admins_refused(&s.admins, "no keys and no identities");
    add_key(&s.admins.items[1].credentials, "x");
    assert_int_equal(mr_admins_check(&s.admins, NULL), MR_OK);
    add_key(&s.admins.items[1].credentials, "x");
    assert_admins_refused(&s.admins, "a key is listed twice");
    s.admins.items[1].name[0] = ' ';
    assert_admins_refused(&s.admins, "its name must have");
    free(s.tenants);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_callers_by_key),
        cmocka_unit_test(test_callers_by_certificate),
        cmocka_unit_test(test_callers_by_several_names),
        cmocka_unit_test(test_callers_by_key_and_certificate),
        cmocka_unit_test(test_callers_of_an_open_server_are_unknown),
        cmocka_unit_test(test_callers_identities_as_they_are_written),
        cmocka_unit_test(test_callers_credentials_are_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
