/* Certificates for tests, in files of the scratch directory: NAME.pem and NAME.key. */
#ifndef GACC_TEST_CERTIFICATES_H
#define GACC_TEST_CERTIFICATES_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "tests/unit/scratch.h"

struct certificate {
    EVP_PKEY *key;
    X509 *x509;
    char pem[128], key_file[128];
};

static inline void certificate_extend(X509 *certificate, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    if (!extension || X509_add_ext(certificate, extension, -1) != 1) abort();
    X509_EXTENSION_free(extension);
}

/* Signed by `by` (NULL: an authority, by itself), good until `days` from now. */
static inline struct certificate certificate_make(const char *name, const struct certificate *by, const char *names,
                                                  int days)
{
    struct certificate made = {.key = EVP_EC_gen("P-256"), .x509 = X509_new()};
    X509_set_version(made.x509, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.x509), 1 + rand());
    X509_gmtime_adj(X509_getm_notBefore(made.x509), -86400L * 10);
    X509_gmtime_adj(X509_getm_notAfter(made.x509), 86400L * days);
    X509_NAME *subject = X509_get_subject_name(made.x509);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const uint8_t *)name, -1, -1, 0);
    X509_set_issuer_name(made.x509, by ? X509_get_subject_name(by->x509) : subject);
    X509_set_pubkey(made.x509, made.key);
    if (names) certificate_extend(made.x509, NID_subject_alt_name, names);
    certificate_extend(made.x509, NID_basic_constraints, by ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (!X509_sign(made.x509, by ? by->key : made.key, EVP_sha256())) abort();
    snprintf(made.pem, sizeof made.pem, "%s/%s.pem", scratch, name);
    snprintf(made.key_file, sizeof made.key_file, "%s/%s.key", scratch, name);
    FILE *file = fopen(made.pem, "w");
    if (!file || !PEM_write_X509(file, made.x509) || fclose(file)) abort();
    file = fopen(made.key_file, "w");
    if (!file || !PEM_write_PrivateKey(file, made.key, NULL, NULL, 0, NULL, NULL) || fclose(file)) abort();
    return made;
}

static inline void certificate_free(struct certificate *certificate)
{
    X509_free(certificate->x509);
    EVP_PKEY_free(certificate->key);
}

#endif
