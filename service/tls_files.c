/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tls_files.h"

#include "base/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The bundle of all public CAs has a quarter of that. */
#define FILE_MAX_BYTES (1u << 20)
#define DATE_BYTES     64

static const char *path_of(const mr_tls_paths *paths, mr_tls_file file)
{
    const char *const all[] = {paths->certificate, paths->private_key, paths->ca};
    return all[file] != NULL && all[file][0] != '\0' ? all[file] : NULL;
}

static const char *name_of(const mr_tls_paths *paths, mr_tls_file file)
{
    const char *const all[] = {paths->certificate_name, paths->private_key_name, paths->ca_name};
    return all[file];
}

/* Not mapped: who writes into the file would take the pages away. `text` has FILE_MAX_BYTES + 1
 * bytes. */
static mr_status read_descriptor(int fd, char *text, size_t *size)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return MR_INVALID_ARGUMENT;
    }
    *size = 0;
    for (;;) {
        const ssize_t got = read(fd, text + *size, FILE_MAX_BYTES + 1 - *size);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return MR_UNKNOWN;
        }
        *size += (size_t)got;
        if (*size > FILE_MAX_BYTES) {
            return MR_OUT_OF_RANGE;
        }
        if (got == 0) {
            return MR_OK;
        }
    }
}

static mr_status read_file(const char *path, char *text, size_t *size)
{
    /* O_NONBLOCK: opening a pipe must not wait for its writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        const bool denied = errno == EACCES || errno == EPERM;
        return denied ? MR_PERMISSION_DENIED : MR_NOT_FOUND;
    }
    const mr_status status = read_descriptor(fd, text, size);
    close(fd);
    return status;
}

/* Names, sizes and contents, so that what moves from one file to the next is a change too. */
static void digest_all(mr_tls_material *material)
{
    uint8_t parts[MR_TLS_FILES][MR_SHA256_BYTES + 1] = {{0}};
    for (int f = 0; f < MR_TLS_FILES; f++) {
        parts[f][MR_SHA256_BYTES] = (uint8_t)material->read[f];
        if (material->pem[f] != NULL) {
            mr_sha256(material->pem[f], strlen(material->pem[f]), parts[f]);
        }
    }
    mr_sha256(parts, sizeof(parts), material->digest);
}

mr_status mr_tls_material_read(const mr_tls_paths *paths, mr_tls_material *out, mr_error *err)
{
    *out = (mr_tls_material){0};
    char *text = malloc(FILE_MAX_BYTES + 1);
    if (text == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for certificates");
    }
    mr_status status = MR_OK;
    for (int f = 0; f < MR_TLS_FILES && status == MR_OK; f++) {
        const char *path = path_of(paths, (mr_tls_file)f);
        size_t size = 0;
        out->read[f] = path == NULL ? MR_OK : read_file(path, text, &size);
        if (path == NULL || out->read[f] != MR_OK) {
            continue;
        }
        out->pem[f] = mr_calloc(1, size + 1);
        if (out->pem[f] == NULL) {
            status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for certificates");
        } else {
            memcpy(out->pem[f], text, size); /* a NUL ends it: PEM has none */
        }
        OPENSSL_cleanse(text, size);
    }
    free(text);
    digest_all(out);
    return status;
}

void mr_tls_material_deinit(mr_tls_material *material)
{
    for (int f = 0; f < MR_TLS_FILES; f++) {
        if (material->pem[f] != NULL) {
            OPENSSL_cleanse(material->pem[f], strlen(material->pem[f]));
            free(material->pem[f]);
        }
    }
    *material = (mr_tls_material){0};
}

/* One look at the material, and what it made of it. */
typedef struct checker {
    const mr_tls_material *material;
    const mr_tls_paths *paths;
    time_t now;
    SSL_CTX *ssl;
    mr_error *err;
} checker;

static mr_status fail_file(const checker *c, mr_tls_file file, mr_status status, const char *what)
{
    return mr_fail_field(c->err, status, name_of(c->paths, file), "%s: '%s' %s",
                         name_of(c->paths, file), path_of(c->paths, file), what);
}

static mr_status check_read(const checker *c)
{
    for (int f = 0; f < MR_TLS_FILES; f++) {
        const mr_tls_file file = (mr_tls_file)f;
        switch (c->material->read[f]) {
        case MR_OK:
            break;
        case MR_NOT_FOUND:
            return fail_file(c, file, MR_NOT_FOUND, "cannot be opened; check the path");
        case MR_PERMISSION_DENIED:
            return fail_file(c, file, MR_PERMISSION_DENIED,
                             "may not be read; let this user read the file and search its folders");
        case MR_OUT_OF_RANGE:
            return fail_file(c, file, MR_FAILED_PRECONDITION,
                             "has more than 1 MiB: give a file in PEM");
        default:
            return fail_file(c, file, MR_FAILED_PRECONDITION,
                             "is no file that can be read: give a file in PEM");
        }
    }
    return MR_OK;
}

/* Keys with a password are refused: nobody is there to be asked. */
static int no_password(char *buffer, int size, int writes, void *ctx)
{
    (void)size;
    (void)writes;
    (void)ctx;
    buffer[0] = '\0';
    return -1;
}

static BIO *bio_of(const checker *c, mr_tls_file file)
{
    const char *pem = c->material->pem[file];
    return BIO_new_mem_buf(pem, (int)strlen(pem));
}

/* Gives a certificate, or NULL after the last one; *bad when what comes is none. */
static X509 *next_certificate(BIO *bio, bool *bad)
{
    ERR_clear_error();
    X509 *found = PEM_read_bio_X509_AUX(bio, NULL, no_password, NULL);
    if (found == NULL) {
        const unsigned long code = ERR_peek_last_error();
        *bad = ERR_GET_LIB(code) != ERR_LIB_PEM || ERR_GET_REASON(code) != PEM_R_NO_START_LINE;
        ERR_clear_error();
    }
    return found;
}

static void print_date(const ASN1_TIME *when, char out[DATE_BYTES])
{
    struct tm utc;
    out[0] = '\0';
    if (ASN1_TIME_to_tm(when, &utc) == 1) {
        (void)strftime(out, DATE_BYTES, "%Y-%m-%d %H:%M:%S UTC", &utc);
    }
}

static mr_status check_dates(const checker *c, const X509 *certificate, int64_t *not_after_s)
{
    time_t now = c->now;
    char date[DATE_BYTES];
    char text[DATE_BYTES + 96];
    const ASN1_TIME *from = X509_get0_notBefore(certificate);
    const ASN1_TIME *until = X509_get0_notAfter(certificate);
    if (X509_cmp_time(until, &now) <= 0) {
        print_date(until, date);
        (void)snprintf(text, sizeof(text), "expired on %s: have a new one issued", date);
        return fail_file(c, MR_TLS_CERTIFICATE, MR_FAILED_PRECONDITION, text);
    }
    if (X509_cmp_time(from, &now) > 0) {
        print_date(from, date);
        (void)snprintf(text, sizeof(text), "is not valid before %s: check the machine's clock",
                       date);
        return fail_file(c, MR_TLS_CERTIFICATE, MR_FAILED_PRECONDITION, text);
    }
    struct tm utc;
    *not_after_s = ASN1_TIME_to_tm(until, &utc) == 1 ? (int64_t)timegm(&utc) : 0;
    return MR_OK;
}

/* What OpenSSL has against it, in its words. */
static mr_status fail_openssl(const checker *c, mr_tls_file file, const char *what)
{
    char text[192];
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    (void)snprintf(text, sizeof(text), "%s: %s", what, reason == NULL ? "OpenSSL says no" : reason);
    ERR_clear_error();
    return fail_file(c, file, MR_FAILED_PRECONDITION, text);
}

static mr_status take_leaf(const checker *c, X509 *leaf, int64_t *not_after_s)
{
    if (leaf == NULL) {
        return fail_file(c, MR_TLS_CERTIFICATE, MR_FAILED_PRECONDITION,
                         "holds no certificate in PEM (-----BEGIN CERTIFICATE-----)");
    }
    MR_TRY(check_dates(c, leaf, not_after_s));
    if (SSL_CTX_use_certificate(c->ssl, leaf) != 1) {
        return fail_openssl(c, MR_TLS_CERTIFICATE, "cannot be used");
    }
    return MR_OK;
}

static mr_status check_chain(const checker *c, int64_t *not_after_s)
{
    BIO *bio = bio_of(c, MR_TLS_CERTIFICATE);
    if (bio == NULL) {
        return mr_fail(c->err, MR_RESOURCE_EXHAUSTED, "out of memory for certificates");
    }
    bool bad = false;
    X509 *one = next_certificate(bio, &bad);
    mr_status status = take_leaf(c, one, not_after_s);
    while (status == MR_OK && one != NULL && !bad) {
        X509_free(one);
        one = next_certificate(bio, &bad);
    }
    X509_free(one);
    BIO_free(bio);
    if (status == MR_OK && bad) {
        status = fail_file(c, MR_TLS_CERTIFICATE, MR_FAILED_PRECONDITION,
                           "has a part that is no certificate, or is cut off");
    }
    return status;
}

static mr_status take_key(const checker *c, EVP_PKEY *key)
{
    if (key == NULL) {
        const char *pem = c->material->pem[MR_TLS_PRIVATE_KEY];
        const bool locked = strstr(pem, "ENCRYPTED") != NULL;
        return fail_file(c, MR_TLS_PRIVATE_KEY, MR_FAILED_PRECONDITION,
                         locked ? "has a password: write it without one (openssl pkey -in … -out …)"
                                : "holds no private key in PEM (-----BEGIN PRIVATE KEY-----)");
    }
    ERR_clear_error();
    const X509 *leaf = SSL_CTX_get0_certificate(c->ssl);
    if (X509_check_private_key(leaf, key) != 1) {
        ERR_clear_error();
        char text[640];
        (void)snprintf(text, sizeof(text),
                       "is not the key of the first certificate in '%.400s' (%s): take those that "
                       "were made together, the holder's own certificate first",
                       path_of(c->paths, MR_TLS_CERTIFICATE),
                       name_of(c->paths, MR_TLS_CERTIFICATE));
        return fail_file(c, MR_TLS_PRIVATE_KEY, MR_FAILED_PRECONDITION, text);
    }
    if (SSL_CTX_use_PrivateKey(c->ssl, key) != 1) {
        return fail_openssl(c, MR_TLS_PRIVATE_KEY, "cannot be used");
    }
    return MR_OK;
}

static mr_status check_key(const checker *c)
{
    BIO *bio = bio_of(c, MR_TLS_PRIVATE_KEY);
    if (bio == NULL) {
        return mr_fail(c->err, MR_RESOURCE_EXHAUSTED, "out of memory for certificates");
    }
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
    BIO_free(bio);
    const mr_status status = take_key(c, key);
    EVP_PKEY_free(key);
    return status;
}

/* A bundle may hold CAs that have expired, beside those that took their place. */
static mr_status check_cas(const checker *c)
{
    BIO *bio = bio_of(c, MR_TLS_CA);
    if (bio == NULL) {
        return mr_fail(c->err, MR_RESOURCE_EXHAUSTED, "out of memory for certificates");
    }
    bool bad = false;
    bool all_cas = true;
    uint32_t count = 0;
    uint32_t valid = 0;
    time_t now = c->now;
    for (X509 *one; (one = next_certificate(bio, &bad)) != NULL; X509_free(one)) {
        count++;
        all_cas = all_cas && X509_check_ca(one) != 0;
        valid += X509_cmp_time(X509_get0_notAfter(one), &now) > 0 ? 1u : 0u;
    }
    BIO_free(bio);
    if (bad) {
        return fail_file(c, MR_TLS_CA, MR_FAILED_PRECONDITION,
                         "has a part that is no certificate, or is cut off");
    }
    if (count == 0) {
        return fail_file(c, MR_TLS_CA, MR_FAILED_PRECONDITION,
                         "holds no certificate in PEM (-----BEGIN CERTIFICATE-----)");
    }
    if (!all_cas) {
        return fail_file(c, MR_TLS_CA, MR_FAILED_PRECONDITION,
                         "holds a certificate that is no CA's: give those of the issuers");
    }
    return valid > 0 ? MR_OK
                     : fail_file(c, MR_TLS_CA, MR_FAILED_PRECONDITION,
                                 "holds only CAs that have expired: add the new one");
}

static mr_status check_all(checker *c, int64_t *not_after_s)
{
    MR_TRY(check_read(c));
    if (path_of(c->paths, MR_TLS_CERTIFICATE) != NULL) {
        MR_TRY(check_chain(c, not_after_s));
        MR_TRY(check_key(c));
    }
    return path_of(c->paths, MR_TLS_CA) != NULL ? check_cas(c) : MR_OK;
}

mr_status mr_tls_material_check(mr_tls_material *material, const mr_tls_paths *paths, int64_t now_s,
                                mr_error *err)
{
    checker c = {.material = material, .paths = paths, .now = (time_t)now_s, .err = err};
    ERR_clear_error();
    c.ssl = SSL_CTX_new(TLS_method());
    if (c.ssl == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for certificates");
    }
    int64_t not_after_s = 0;
    const mr_status status = check_all(&c, &not_after_s);
    SSL_CTX_free(c.ssl);
    material->not_after_s = status == MR_OK ? not_after_s : 0;
    return status;
}

bool mr_tls_pem_expired(const char *pem, size_t bytes, int64_t now_s)
{
    time_t now = (time_t)now_s;
    BIO *bio = bytes <= FILE_MAX_BYTES ? BIO_new_mem_buf(pem, (int)bytes) : NULL;
    if (bio == NULL) {
        return true;
    }
    X509 *certificate = PEM_read_bio_X509(bio, NULL, no_password, NULL);
    const bool over =
        certificate == NULL || X509_cmp_time(X509_get0_notAfter(certificate), &now) <= 0;
    X509_free(certificate);
    BIO_free(bio);
    ERR_clear_error();
    return over;
}
