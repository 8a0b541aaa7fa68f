/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates are made here, with OpenSSL. */
#include "service/tls_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <time.h>
#include <unistd.h>

#include "../base/temp_dir.h"

#define DAY 86400

static char *bio_text(BIO *bio)
{
    char *data = NULL;
    const long size = BIO_get_mem_data(bio, &data);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    memcpy(text, data, (size_t)size);
    BIO_free(bio);
    return text;
}

static char *key_text(EVP_PKEY *key, const char *password)
{
    BIO *bio = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_write_bio_PrivateKey(bio, key, password == NULL ? NULL : EVP_aes_128_cbc(),
                                              (const unsigned char *)password,
                                              password == NULL ? 0 : (int)strlen(password), NULL,
                                              NULL),
                     1);
    return bio_text(bio);
}

/* Signed by its own key; times in seconds from now. */
static X509 *make_certificate(EVP_PKEY *key, bool is_ca, long from, long until)
{
    X509 *made = X509_new();
    assert_non_null(made);
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), 7);
    X509_gmtime_adj(X509_getm_notBefore(made), from);
    X509_gmtime_adj(X509_getm_notAfter(made), until);
    X509_set_pubkey(made, key);
    X509_NAME *name = X509_get_subject_name(made);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(made, name);
    X509_EXTENSION *basic = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints,
                                                is_ca ? "critical,CA:TRUE" : "critical,CA:FALSE");
    X509_add_ext(made, basic, -1);
    X509_EXTENSION_free(basic);
    assert_true(X509_sign(made, key, EVP_sha256()) > 0);
    return made;
}

static char *certificate_text(EVP_PKEY *key, bool is_ca, long from, long until)
{
    X509 *made = make_certificate(key, is_ca, from, until);
    BIO *bio = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_write_bio_X509(bio, made), 1);
    X509_free(made);
    return bio_text(bio);
}

/* Files that fit together; a test spoils one. */
typedef struct scene {
    temp_dir dir;
    char certificate[PATH_MAX], private_key[PATH_MAX], ca[PATH_MAX];
    mr_tls_paths paths;
    EVP_PKEY *key;
    int64_t now;
} scene;

static void write_text(const scene *s, const char *name, char *text)
{
    temp_dir_write(&s->dir, name, text);
    free(text);
}

static void make_scene(scene *s)
{
    *s = (scene){.dir = temp_dir_make(), .key = EVP_EC_gen("P-256"), .now = (int64_t)time(NULL)};
    assert_non_null(s->key);
    s->paths = (mr_tls_paths){
        .certificate = temp_dir_join(&s->dir, "crt", s->certificate),
        .private_key = temp_dir_join(&s->dir, "key", s->private_key),
        .ca = temp_dir_join(&s->dir, "ca", s->ca),
        .certificate_name = "tls.certificate",
        .private_key_name = "tls.private_key",
        .ca_name = "tls.client_ca",
    };
    write_text(s, "crt", certificate_text(s->key, false, -DAY, DAY));
    write_text(s, "key", key_text(s->key, NULL));
    write_text(s, "ca", certificate_text(s->key, true, -DAY, DAY));
}

static void end_scene(scene *s)
{
    EVP_PKEY_free(s->key);
    temp_dir_remove(&s->dir);
}

static mr_status load(const scene *s, mr_tls_material *material, mr_error *err)
{
    assert_int_equal(mr_tls_material_read(&s->paths, material, err), MR_OK);
    return mr_tls_material_check(material, &s->paths, s->now, err);
}

/* The error names the setting and its file, and says what is wrong. */
static void assert_refused(const scene *s, mr_status status, const char *setting, const char *path,
                           const char *says)
{
    mr_tls_material material;
    mr_error err = {0};
    assert_int_equal(load(s, &material, &err), status);
    mr_tls_material_deinit(&material);
    assert_string_equal(err.field, setting);
    if (strstr(err.message, setting) == NULL || strstr(err.message, path) == NULL ||
        strstr(err.message, says) == NULL) {
        fail_msg("%s", err.message);
    }
    assert_null(strchr(err.message, '\n')); /* as a quoted file would have */
}

static void test_tls_files_that_fit(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    mr_tls_material material;
    mr_error err = {0};
    if (load(&s, &material, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    assert_in_range((uint64_t)material.not_after_s, (uint64_t)s.now + DAY - 60,
                    (uint64_t)s.now + DAY + 60);
    assert_non_null(strstr(material.pem[MR_TLS_PRIVATE_KEY], "BEGIN PRIVATE KEY"));
    mr_tls_material_deinit(&material);

    /* Only CAs, as a client without a certificate has them. */
    s.paths.certificate = NULL;
    s.paths.private_key = "";
    assert_int_equal(load(&s, &material, &err), MR_OK);
    assert_null(material.pem[MR_TLS_CERTIFICATE]);
    assert_int_equal(material.not_after_s, 0);
    mr_tls_material_deinit(&material);
    end_scene(&s);
}

static void test_tls_files_missing_or_unreadable_G6(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    unlink(s.certificate);
    assert_refused(&s, MR_NOT_FOUND, "tls.certificate", s.certificate, "check the path");
    s.paths.certificate = s.dir.path;
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.dir.path, "PEM");
    s.paths.certificate = s.certificate;
    temp_dir_write(&s.dir, "crt", "");
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.certificate, "no certificate");
    temp_dir_write(&s.dir, "crt", "hello\n");
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.certificate, "no certificate");
    write_text(&s, "crt", key_text(s.key, NULL));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.certificate, "no certificate");
    end_scene(&s);
}

static void test_tls_files_cut_off_G6(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    char *whole = certificate_text(s.key, false, -DAY, DAY);
    const size_t bytes = strlen(whole);
    char twice[8192];
    (void)snprintf(twice, sizeof(twice), "%s%.*s", whole, (int)(bytes / 2), whole);
    temp_dir_write(&s.dir, "crt", twice);
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.certificate, "cut off");
    (void)snprintf(twice, sizeof(twice), "%s%s", whole, whole);
    memset(twice + bytes + 40, '!', 8);
    temp_dir_write(&s.dir, "ca", twice);
    temp_dir_write(&s.dir, "crt", whole);
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.client_ca", s.ca, "cut off");
    free(whole);
    end_scene(&s);
}

static void test_tls_files_key_that_is_no_use_G6(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    EVP_PKEY *other = EVP_EC_gen("P-256");
    write_text(&s, "key", key_text(other, NULL));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.private_key", s.private_key,
                   "not the key of the first certificate");
    EVP_PKEY_free(other);
    write_text(&s, "key", key_text(s.key, "hunter2"));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.private_key", s.private_key, "has a password");
    write_text(&s, "key", certificate_text(s.key, false, -DAY, DAY));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.private_key", s.private_key,
                   "no private key in PEM");
    unlink(s.private_key);
    assert_refused(&s, MR_NOT_FOUND, "tls.private_key", s.private_key, "check the path");
    end_scene(&s);
}

static void test_tls_files_dates_G6(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    write_text(&s, "crt", certificate_text(s.key, false, -2 * DAY, -DAY));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.certificate, "expired on 20");
    write_text(&s, "crt", certificate_text(s.key, false, DAY, 2 * DAY));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.certificate,
                   "is not valid before 20");
    end_scene(&s);
}

static void test_tls_files_weak_key(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    EVP_PKEY *weak = EVP_RSA_gen(512);
    write_text(&s, "crt", certificate_text(weak, false, -DAY, DAY));
    write_text(&s, "key", key_text(weak, NULL));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.certificate", s.certificate, "too small");
    EVP_PKEY_free(weak);
    end_scene(&s);
}

/* Old and new one side by side are how a CA is changed. */
static void test_tls_files_cas(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    write_text(&s, "ca", certificate_text(s.key, false, -DAY, DAY));
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.client_ca", s.ca, "no CA's");
    char *old = certificate_text(s.key, true, -2 * DAY, -DAY);
    temp_dir_write(&s.dir, "ca", old);
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.client_ca", s.ca, "expired");
    char *current = certificate_text(s.key, true, -DAY, DAY);
    char both[8192];
    (void)snprintf(both, sizeof(both), "%s%s", old, current);
    temp_dir_write(&s.dir, "ca", both);
    mr_tls_material material;
    mr_error err = {0};
    assert_int_equal(load(&s, &material, &err), MR_OK);
    mr_tls_material_deinit(&material);
    free(old);
    free(current);
    temp_dir_write(&s.dir, "ca", "");
    assert_refused(&s, MR_FAILED_PRECONDITION, "tls.client_ca", s.ca, "no certificate");
    end_scene(&s);
}

/* Whatever changes is another digest, also a file that comes or goes. */
static void test_tls_files_digest(void **state)
{
    (void)state;
    scene s;
    make_scene(&s);
    mr_tls_material a;
    mr_tls_material b;
    assert_int_equal(mr_tls_material_read(&s.paths, &a, NULL), MR_OK);
    assert_int_equal(mr_tls_material_read(&s.paths, &b, NULL), MR_OK);
    assert_memory_equal(a.digest, b.digest, MR_SHA256_BYTES);
    mr_tls_material_deinit(&b);
    write_text(&s, "ca", certificate_text(s.key, true, -DAY, 2 * DAY));
    assert_int_equal(mr_tls_material_read(&s.paths, &b, NULL), MR_OK);
    assert_memory_not_equal(a.digest, b.digest, MR_SHA256_BYTES);
    mr_tls_material_deinit(&a);
    unlink(s.ca);
    assert_int_equal(mr_tls_material_read(&s.paths, &a, NULL), MR_OK);
    assert_memory_not_equal(a.digest, b.digest, MR_SHA256_BYTES);
    mr_tls_material_deinit(&a);
    mr_tls_material_deinit(&b);
    end_scene(&s);
}

static void test_tls_files_expiry_of_a_peer(void **state)
{
    (void)state;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    char *pem = certificate_text(key, false, -DAY, DAY);
    const int64_t now = (int64_t)time(NULL);
    assert_false(mr_tls_pem_expired(pem, strlen(pem), now));
    assert_true(mr_tls_pem_expired(pem, strlen(pem), now + DAY + 60));
    assert_true(mr_tls_pem_expired(pem, 40, now));
    assert_true(mr_tls_pem_expired("", 0, now));
    free(pem);
    EVP_PKEY_free(key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_files_that_fit),
        cmocka_unit_test(test_tls_files_missing_or_unreadable_G6),
        cmocka_unit_test(test_tls_files_cut_off_G6),
        cmocka_unit_test(test_tls_files_key_that_is_no_use_G6),
        cmocka_unit_test(test_tls_files_dates_G6),
        cmocka_unit_test(test_tls_files_weak_key),
        cmocka_unit_test(test_tls_files_cas),
        cmocka_unit_test(test_tls_files_digest),
        cmocka_unit_test(test_tls_files_expiry_of_a_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
