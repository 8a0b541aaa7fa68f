/* SPDX-License-Identifier: Apache-2.0 */
#include "service/credentials.h"

#include <string.h>
#include <strings.h>

#define COMMON_PREFIX "CN="

static mr_name_kind kind_of(const char *identity)
{
    if (strncmp(identity, COMMON_PREFIX, sizeof(COMMON_PREFIX) - 1) == 0) {
        return MR_NAME_COMMON;
    }
    return strchr(identity, ':') != NULL ? MR_NAME_URI : MR_NAME_DNS;
}

/* The name that the certificate must hold. */
static const char *name_of(const char *identity)
{
    return kind_of(identity) == MR_NAME_COMMON ? identity + sizeof(COMMON_PREFIX) - 1 : identity;
}

static bool is_dns_name(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    return text[0] != '.' && text[strspn(text, allowed)] == '\0';
}

mr_status mr_identity_check(const char *text, mr_error *err)
{
    const char *name = name_of(text);
    if (name[0] == '\0' || strlen(text) > MR_IDENTITY_MAX) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "an identity has 1 to %d bytes", MR_IDENTITY_MAX);
    }
    for (const char *c = name; *c != '\0'; c++) {
        const bool printable = (unsigned char)*c > ' ' && *c != 0x7f;
        if (!printable && !(*c == ' ' && kind_of(text) == MR_NAME_COMMON)) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "an identity has no spaces or control characters");
        }
    }
    if (kind_of(text) == MR_NAME_DNS && !is_dns_name(text)) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "\"%s\" is no identity: write a URI such as spiffe://example.org/a, a DNS "
                       "name (no wildcards) or CN=NAME",
                       text);
    }
    return MR_OK;
}

bool mr_credentials_has_key(const mr_credentials *credentials,
                            const uint8_t digest[MR_SHA256_BYTES])
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < MR_CALLER_MAX_KEYS; i++) {
        /* Also the empty places are compared; no digest equals all zeros but by 2^-256. */
        found |= (uint32_t)mr_sha256_equal(digest, credentials->keys[i]) &
                 (uint32_t)(i < credentials->n_keys);
    }
    return found != 0;
}

/* Two spellings of one name. */
static bool is_same(const char *a, const char *b)
{
    return kind_of(a) == MR_NAME_DNS ? strcasecmp(a, b) == 0 : strcmp(a, b) == 0;
}

static bool has_identity(const mr_credentials *credentials, const char *identity)
{
    for (uint32_t i = 0; i < credentials->n_identities; i++) {
        if (is_same(credentials->identities[i], identity)) {
            return true;
        }
    }
    return false;
}

/* The length is compared first: a name with a NUL in it is no shorter name. */
static bool matches(const char *identity, const mr_peer_name *name)
{
    const char *wanted = name_of(identity);
    if (kind_of(identity) != name->kind || strlen(wanted) != name->bytes) {
        return false;
    }
    return name->kind == MR_NAME_DNS ? strncasecmp(wanted, name->text, name->bytes) == 0
                                     : memcmp(wanted, name->text, name->bytes) == 0;
}

/* The common name counts only where there is no alternative name (RFC 6125, 6.4.4): it is free text
 * to many issuers. */
static bool counts(const mr_peer *peer, const mr_peer_name *name)
{
    if (name->kind != MR_NAME_COMMON) {
        return true;
    }
    for (uint32_t i = 0; i < peer->n_names; i++) {
        if (peer->names[i].kind != MR_NAME_COMMON) {
            return false;
        }
    }
    return true;
}

bool mr_credentials_match(const mr_credentials *credentials, const mr_peer *peer)
{
    for (uint32_t n = 0; n < peer->n_names; n++) {
        const bool usable = counts(peer, &peer->names[n]);
        for (uint32_t i = 0; usable && i < credentials->n_identities; i++) {
            if (matches(credentials->identities[i], &peer->names[n])) {
                return true;
            }
        }
    }
    return false;
}

/* What is in both: "key", "identity", or NULL. */
static const char *common_to(const mr_credentials *a, const mr_credentials *b)
{
    for (uint32_t i = 0; i < a->n_keys; i++) {
        if (mr_credentials_has_key(b, a->keys[i])) {
            return "key";
        }
    }
    for (uint32_t i = 0; i < a->n_identities; i++) {
        if (has_identity(b, a->identities[i])) {
            return "identity";
        }
    }
    return NULL;
}

/* What is in it twice, the same way. */
static const char *repeated_in(const mr_credentials *credentials)
{
    for (uint32_t i = 1; i < credentials->n_keys; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (memcmp(credentials->keys[i], credentials->keys[k], MR_SHA256_BYTES) == 0) {
                return "key";
            }
        }
    }
    for (uint32_t i = 1; i < credentials->n_identities; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (is_same(credentials->identities[i], credentials->identities[k])) {
                return "identity";
            }
        }
    }
    return NULL;
}

mr_status mr_holder_fail(const mr_holder *holder, mr_error *err, const char *what)
{
    return mr_fail_field(err, MR_INVALID_ARGUMENT, holder->setting, "%s \"%s\": %s", holder->kind,
                         holder->name, what);
}

static bool is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    return name[0] != '\0' && name[strspn(name, allowed)] == '\0';
}

mr_status mr_holder_check(const mr_holder *holder, mr_error *err)
{
    const mr_credentials *credentials = holder->credentials;
    if (!is_name(holder->name)) {
        return mr_holder_fail(holder, err,
                              "its name must have 1 to 63 letters, digits, dots, dashes and "
                              "underscores");
    }
    if (credentials->n_keys == 0 && credentials->n_identities == 0) {
        return mr_holder_fail(holder, err,
                              "it has no keys and no identities, so nobody could call as it: list "
                              "the SHA-256 of its key in keys");
    }
    const char *repeated = repeated_in(credentials);
    return repeated == NULL ? MR_OK
                            : mr_holder_fail(holder, err,
                                             repeated[0] == 'i' ? "an identity is listed twice"
                                                                : "a key is listed twice");
}

mr_status mr_holder_check_pair(const mr_holder *a, const mr_holder *b, mr_error *err)
{
    const bool alike = strcmp(a->kind, b->kind) == 0;
    const char *common = common_to(a->credentials, b->credentials);
    if (alike && strcmp(a->name, b->name) == 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, a->setting,
                             "%s \"%s\": two %ss have this name", a->kind, a->name, a->kind);
    }
    if (common != NULL && alike) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, a->setting,
                             "%ss \"%s\" and \"%s\" have %s %s in common: give each its own",
                             a->kind, b->name, a->name, common[0] == 'i' ? "an" : "a", common);
    }
    if (common != NULL) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, a->setting,
                             "%s \"%s\" and %s \"%s\" have the same %s: give each its own", a->kind,
                             a->name, b->kind, b->name, common);
    }
    return MR_OK;
}
