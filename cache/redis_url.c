/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/redis_url.h"

#include "base/digits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_PORT 6379u
#define DB_MAX       65535u
#define FORM         "redis://[user:password@]host:port/db or unix:///path?db=N"

/* A part of the text. */
typedef struct span {
    const char *at;
    size_t length;
} span;

static span span_of(const char *at, size_t length)
{
    return (span){.at = at, .length = length};
}

/* Percent-decodes into `out`; `what` names the part in errors. */
static mr_status decode(span part, const char *what, char *out, size_t bytes, mr_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < part.length; i++) {
        unsigned char c = (unsigned char)part.at[i];
        if (c == '%') {
            const int high = i + 2 < part.length ? mr_digits_hex_value(part.at[i + 1]) : -1;
            const int low = high >= 0 ? mr_digits_hex_value(part.at[i + 2]) : -1;
            if (low < 0) {
                return mr_fail(err, MR_INVALID_ARGUMENT,
                               "the %s has a %% that no two hexadecimal digits follow: write a "
                               "percent sign as %%25",
                               what);
            }
            c = (unsigned char)(high * 16 + low);
            i += 2;
        }
        if (c < 0x20 || c == 0x7f) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "the %s has a control character", what);
        }
        if (used + 1 >= bytes) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "the %s is too long: at most %zu bytes fit",
                           what, bytes - 1);
        }
        out[used++] = (char)c;
    }
    out[used] = '\0';
    return MR_OK;
}

/* Digits only, at most `high`. */
static bool parse_number(span part, uint32_t high, uint32_t *out)
{
    uint64_t value = 0;
    if (!mr_digits_u64(part.at, part.length, &value) || value > high) {
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static mr_status parse_db(span part, mr_redis_url *out, mr_error *err)
{
    if (!parse_number(part, DB_MAX, &out->db)) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "the database must be a number from 0 to %u: write the URL as " FORM,
                       DB_MAX);
    }
    return MR_OK;
}

/* "[user]:password"; `part` is what stands before the @. */
static mr_status parse_login(span part, mr_redis_url *out, mr_error *err)
{
    const char *colon = memchr(part.at, ':', part.length);
    if (colon == NULL) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "there is a user and no password before the @: write user:password@, or "
                       ":password@ for the default user");
    }
    const size_t user = (size_t)(colon - part.at);
    MR_TRY(decode(span_of(part.at, user), "user", out->user, sizeof(out->user), err));
    MR_TRY(decode(span_of(colon + 1, part.length - user - 1), "password", out->password,
                  sizeof(out->password), err));
    if (out->password[0] == '\0') {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "the password is empty: leave out all before the "
                       "host where Redis asks for none");
    }
    return MR_OK;
}

/* Splits the login, if there is one, from what comes up to the first '/', and leaves the rest. */
static mr_status take_login(span *authority, mr_redis_url *out, mr_error *err)
{
    const char *at = memrchr(authority->at, '@', authority->length);
    if (at == NULL) {
        return MR_OK;
    }
    const size_t length = (size_t)(at - authority->at);
    MR_TRY(parse_login(span_of(authority->at, length), out, err));
    *authority = span_of(at + 1, authority->length - length - 1);
    return MR_OK;
}

/* "host", "host:port", "[v6]" or "[v6]:port". */
static mr_status parse_place(span place, mr_redis_url *out, mr_error *err)
{
    span host = place;
    span port = {0};
    if (place.length > 0 && place.at[0] == '[') {
        const char *end = memchr(place.at, ']', place.length);
        if (end == NULL) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "the address has no closing ]");
        }
        host = span_of(place.at + 1, (size_t)(end - place.at) - 1);
        port = span_of(end + 1, place.length - host.length - 2);
        if (port.length > 0 && port.at[0] != ':') {
            return mr_fail(err, MR_INVALID_ARGUMENT, "after the ] comes :port or nothing");
        }
    } else {
        const char *colon = memchr(place.at, ':', place.length);
        if (colon != NULL) {
            host.length = (size_t)(colon - place.at);
            port = span_of(colon, place.length - host.length);
        }
    }
    MR_TRY(decode(host, "host", out->host, sizeof(out->host), err));
    if (out->host[0] == '\0') {
        return mr_fail(err, MR_INVALID_ARGUMENT, "it names no host: write the URL as " FORM);
    }
    uint32_t number = DEFAULT_PORT;
    if (port.length > 0 &&
        (!parse_number(span_of(port.at + 1, port.length - 1), UINT16_MAX, &number) ||
         number == 0)) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "the port must be a number from 1 to 65535; an IPv6 address stands in [ ]");
    }
    out->port = (uint16_t)number;
    return MR_OK;
}

static mr_status parse_network(const char *rest, mr_redis_url *out, mr_error *err)
{
    span authority = span_of(rest, strcspn(rest, "/?#"));
    const char *tail = rest + authority.length;
    MR_TRY(take_login(&authority, out, err));
    MR_TRY(parse_place(authority, out, err));
    if (tail[0] == '\0' || strcmp(tail, "/") == 0) {
        return MR_OK;
    }
    if (tail[0] != '/') {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "after host and port comes /db or nothing: write the URL as " FORM);
    }
    return parse_db(span_of(tail + 1, strlen(tail + 1)), out, err);
}

static mr_status parse_socket(const char *rest, mr_redis_url *out, mr_error *err)
{
    static const char query[] = "?db=";
    out->is_socket = true;
    span authority = span_of(rest, strcspn(rest, "/?#"));
    const char *path = rest + authority.length;
    MR_TRY(take_login(&authority, out, err));
    if (authority.length != 0 || path[0] != '/') {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "a socket is given by its whole path, with three slashes: "
                       "unix:///run/redis.sock?db=0");
    }
    const size_t length = strcspn(path, "?#");
    MR_TRY(decode(span_of(path, length), "path", out->host, sizeof(out->host), err));
    if (path[length] == '\0') {
        return MR_OK;
    }
    if (strncmp(path + length, query, sizeof(query) - 1) != 0) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "after the path comes ?db=N or nothing");
    }
    const char *db = path + length + sizeof(query) - 1;
    return parse_db(span_of(db, strlen(db)), out, err);
}

/* What comes behind the scheme, NULL if it is another one. */
static const char *after(const char *text, const char *scheme)
{
    const size_t length = strlen(scheme);
    return strncmp(text, scheme, length) == 0 ? text + length : NULL;
}

mr_status mr_redis_url_parse(const char *text, mr_redis_url *out, mr_error *err)
{
    *out = (mr_redis_url){0};
    if (after(text, "rediss://") != NULL) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "rediss:// asks for TLS, which the Redis client in this build lacks: run a "
                       "TLS proxy such as stunnel beside millrace and give its redis:// or "
                       "unix:// address");
    }
    const char *rest = after(text, "redis://");
    if (rest != NULL) {
        return parse_network(rest, out, err);
    }
    rest = after(text, "unix://");
    if (rest != NULL) {
        return parse_socket(rest, out, err);
    }
    return mr_fail(err, MR_INVALID_ARGUMENT, "it is no URL of Redis: write it as " FORM);
}

void mr_redis_url_show(const mr_redis_url *url, char *out, size_t bytes)
{
    if (url->is_socket) {
        snprintf(out, bytes, "unix://%s?db=%" PRIu32, url->host, url->db);
    } else {
        const bool v6 = strchr(url->host, ':') != NULL;
        snprintf(out, bytes, "redis://%s%s%s:%u/%" PRIu32, v6 ? "[" : "", url->host, v6 ? "]" : "",
                 url->port, url->db);
    }
}
