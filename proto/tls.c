#include "proto/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of TLS 1.2 those that HTTP/2 allows (RFC 9113 9.2.2); all of TLS 1.3 are. */
static const char ciphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

#define EPHEMERAL_DAYS 3650 /* longer than any job; it dies with it */
#define CLOCK_SKEW_DAYS 1   /* between two hosts, for clients that look at the time */

struct tls_context {
    SSL_CTX *ssl;
    bool is_server, http1;
    uint8_t pinned[TLS_FINGERPRINT_BYTES];
    char *host; /* client: server name */
};

struct tls {
    SSL *ssl;
    BIO *in, *out; /* of ssl */
    size_t received;
    bool is_established;
    enum tls_fault fault;
};

/* ---- what OpenSSL says ---- */

/* The first thing that went wrong is the reason; what follows says where it led. */
static const char *first_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_error());
    ERR_clear_error();
    return reason ? reason : "OpenSSL failed";
}

static enum tls_fault fault_of(unsigned long code)
{
    static const struct {
        int reason;
        enum tls_fault fault;
    } rows[] = {
        {SSL_R_WRONG_VERSION_NUMBER, TLS_NOT_SPOKEN},
        {SSL_R_HTTP_REQUEST, TLS_NOT_SPOKEN},
        {SSL_R_HTTPS_PROXY_REQUEST, TLS_NOT_SPOKEN},
        {SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED, TLS_REFUSED},
        {SSL_R_TLSV1_ALERT_UNKNOWN_CA, TLS_REFUSED},
        {SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE, TLS_REFUSED}, /* TLS 1.2 for "certificate required" */
        {SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, TLS_REFUSED},
        {SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED, TLS_REFUSED},
        {SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, TLS_REFUSED},
        {SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE, TLS_REFUSED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == rows[i].reason) return rows[i].fault;
    return TLS_NO_FAULT;
}

static int fail_internal(const char *what, struct error *error)
{
    return error_set(error, STATUS_INTERNAL, "%s: %s", what, first_reason());
}

static bool is_readable(const char *path, struct error *error)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) error_set_errno(error, STATUS_MISSING, errno, "%s", path);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static int refuse_passphrase(char *text, int size, int is_writing, void *context)
{
    (void)text, (void)size, (void)is_writing, (void)context;
    return -1; /* nobody is there to type one */
}

/* ---- contexts ---- */

static int use_files(SSL_CTX *ssl, const char *certificate, const char *key, struct error *error)
{
    if (!is_readable(certificate, error) || !is_readable(key, error)) return -STATUS_MISSING;
    if (SSL_CTX_use_certificate_chain_file(ssl, certificate) != 1)
        return error_set(error, STATUS_DATA, "%s: no certificate in PEM: %s", certificate, first_reason());
    if (SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1)
        return error_set(error, STATUS_DATA, "%s: no private key in PEM, without a passphrase, of that certificate: %s",
                         key, first_reason());
    return 0;
}

static int load_authorities(SSL_CTX *ssl, const char *path, struct error *error)
{
    if (!path) return SSL_CTX_set_default_verify_paths(ssl) == 1 ? 0 : fail_internal("TLS", error);
    if (!is_readable(path, error)) return -STATUS_MISSING;
    if (SSL_CTX_load_verify_file(ssl, path) != 1)
        return error_set(error, STATUS_DATA, "%s: no certificates in PEM: %s", path, first_reason());
    return 0;
}

static bool add_extension(X509 *certificate, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    const bool added = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool fill_certificate(X509 *certificate, EVP_PKEY *key, const char *names)
{
    uint64_t serial;
    X509_NAME *subject = X509_get_subject_name(certificate);
    return X509_set_version(certificate, X509_VERSION_3) && RAND_bytes((uint8_t *)&serial, sizeof serial) == 1 &&
           ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial >> 1 | 1) &&
           X509_gmtime_adj(X509_getm_notBefore(certificate), -86400L * CLOCK_SKEW_DAYS) &&
           X509_gmtime_adj(X509_getm_notAfter(certificate), 86400L * EPHEMERAL_DAYS) &&
           X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const uint8_t *)"gaccd", -1, -1, 0) &&
           X509_set_issuer_name(certificate, subject) && X509_set_pubkey(certificate, key) &&
           add_extension(certificate, NID_subject_alt_name, names) &&
           add_extension(certificate, NID_basic_constraints, "critical,CA:FALSE") &&
           X509_sign(certificate, key, EVP_sha256());
}

static int make_ephemeral(SSL_CTX *ssl, const char *names, struct error *error)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    const bool made = key && certificate && fill_certificate(certificate, key, names) &&
                      SSL_CTX_use_certificate(ssl, certificate) == 1 && SSL_CTX_use_PrivateKey(ssl, key) == 1;
    X509_free(certificate);
    EVP_PKEY_free(key);
    return made ? 0 : fail_internal("a certificate", error);
}

/* gRPC's clients offer h2 alone; one that offers both (curl, Prometheus) wants pages. */
static int choose_protocol(SSL *ssl, const uint8_t **chosen, uint8_t *length, const uint8_t *offered,
                           unsigned offered_length, void *data)
{
    (void)ssl;
    static const uint8_t both[] = "\x08http/1.1\x02h2", h2[] = "\x02h2";
    const struct tls_context *context = data;
    const uint8_t *spoken = context->http1 ? both : h2;
    const unsigned size = context->http1 ? sizeof both - 1 : sizeof h2 - 1;
    uint8_t *found;
    if (SSL_select_next_proto(&found, length, spoken, size, offered, offered_length) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *chosen = found;
    return SSL_TLSEXT_ERR_OK;
}

static int is_pinned(X509_STORE_CTX *store, void *data)
{
    const struct tls_context *context = data;
    uint8_t fingerprint[EVP_MAX_MD_SIZE];
    unsigned length;
    X509 *shown = X509_STORE_CTX_get0_cert(store);
    const bool same = shown && X509_digest(shown, EVP_sha256(), fingerprint, &length) &&
                      length == TLS_FINGERPRINT_BYTES && !memcmp(fingerprint, context->pinned, length);
    X509_STORE_CTX_set_error(store, same ? X509_V_OK : X509_V_ERR_CERT_UNTRUSTED);
    return same;
}

static int new_context(struct tls_context **out, const SSL_METHOD *method, struct error *error)
{
    struct tls_context *context = calloc(1, sizeof *context);
    if (!context) return error_set(error, STATUS_INTERNAL, "out of memory");
    SSL_CTX *ssl = context->ssl = SSL_CTX_new(method);
    if (!ssl || SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) != 1 || SSL_CTX_set_cipher_list(ssl, ciphers) != 1) {
        tls_context_close(context);
        return fail_internal("TLS", error);
    }
    SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(ssl, 0);
    SSL_CTX_set_max_cert_list(ssl, TLS_CERTIFICATES_MAX);
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_default_passwd_cb(ssl, refuse_passphrase);
    *out = context;
    return 0;
}

static int end_of(struct tls_context *context, int status, struct tls_context **out)
{
    if (status)
        tls_context_close(context);
    else
        *out = context;
    return status;
}

int tls_server(struct tls_context **out, const struct tls_server_options *options, struct error *error)
{
    struct tls_context *context;
    int status = new_context(&context, TLS_server_method(), error);
    if (status) return status;
    context->is_server = true;
    context->http1 = options->http1;
    SSL_CTX_set_alpn_select_cb(context->ssl, choose_protocol, context);
    status = options->certificate ? use_files(context->ssl, options->certificate, options->key, error)
                                  : make_ephemeral(context->ssl, options->names, error);
    if (!status && options->clients) {
        status = load_authorities(context->ssl, options->clients, error);
        SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
    return end_of(context, status, out);
}

/* The certificate has to be for this name, or this address. */
static bool expect_host(SSL_CTX *ssl, const char *host)
{
    uint8_t address[sizeof(struct in6_addr)];
    X509_VERIFY_PARAM *parameters = SSL_CTX_get0_param(ssl);
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(parameters, host) == 1;
    return X509_VERIFY_PARAM_set1_host(parameters, host, 0) == 1;
}

int tls_client(struct tls_context **out, const struct tls_client_options *options, struct error *error)
{
    struct tls_context *context;
    int status = new_context(&context, TLS_client_method(), error);
    if (status) return status;
    SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER, NULL);
    if (SSL_CTX_set_alpn_protos(context->ssl, (const uint8_t *)"\x02h2", 3)) status = fail_internal("TLS", error);
    if (!status && options->fingerprint) {
        memcpy(context->pinned, options->fingerprint, sizeof context->pinned);
        SSL_CTX_set_cert_verify_callback(context->ssl, is_pinned, context);
    } else if (!status) {
        status = load_authorities(context->ssl, options->authorities, error);
        if (!status && !expect_host(context->ssl, options->host)) status = fail_internal(options->host, error);
        if (!status && !(context->host = strdup(options->host)))
            status = error_set(error, STATUS_INTERNAL, "out of memory");
    }
    if (!status && options->certificate) status = use_files(context->ssl, options->certificate, options->key, error);
    return end_of(context, status, out);
}

void tls_context_close(struct tls_context *context)
{
    if (!context) return;
    SSL_CTX_free(context->ssl);
    free(context->host);
    free(context);
}

/* ---- the own certificate ---- */

void tls_fingerprint(const uint8_t *der, size_t length, uint8_t fingerprint[TLS_FINGERPRINT_BYTES])
{
    unsigned size;
    EVP_Digest(der, length, fingerprint, &size, EVP_sha256(), NULL);
}

void tls_context_fingerprint(const struct tls_context *context, uint8_t fingerprint[TLS_FINGERPRINT_BYTES])
{
    unsigned size;
    X509_digest(SSL_CTX_get0_certificate(context->ssl), EVP_sha256(), fingerprint, &size);
}

size_t tls_context_certificate(const struct tls_context *context, uint8_t *bytes, size_t capacity)
{
    X509 *certificate = SSL_CTX_get0_certificate(context->ssl);
    const int length = i2d_X509(certificate, NULL);
    if (length <= 0 || (size_t)length > capacity) return 0;
    i2d_X509(certificate, &bytes);
    return (size_t)length;
}

char *tls_context_pem(const struct tls_context *context)
{
    BIO *memory = BIO_new(BIO_s_mem());
    char *text = NULL, *bytes;
    if (memory && PEM_write_bio_X509(memory, SSL_CTX_get0_certificate(context->ssl))) {
        const long length = BIO_get_mem_data(memory, &bytes);
        text = strndup(bytes, (size_t)length);
    }
    BIO_free(memory);
    return text;
}

/* ---- one connection ---- */

int tls_open(struct tls **out, struct tls_context *context, struct error *error)
{
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls) return error_set(error, STATUS_INTERNAL, "out of memory");
    tls->ssl = SSL_new(context->ssl);
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
    if (!tls->ssl || !tls->in || !tls->out) {
        BIO_free(tls->in);
        BIO_free(tls->out);
        SSL_free(tls->ssl);
        free(tls);
        return fail_internal("TLS", error);
    }
    SSL_set_bio(tls->ssl, tls->in, tls->out);
    if (context->is_server) {
        SSL_set_accept_state(tls->ssl);
    } else {
        SSL_set_connect_state(tls->ssl);
        if (context->host) SSL_set_tlsext_host_name(tls->ssl, context->host);
        SSL_do_handshake(tls->ssl); /* the first message; it then wants the peer's */
        ERR_clear_error();
    }
    *out = tls;
    return 0;
}

void tls_close(struct tls *tls)
{
    if (!tls) return;
    SSL_free(tls->ssl); /* and both BIOs */
    free(tls);
}

int tls_input(struct tls *tls, const uint8_t *bytes, size_t length, struct error *error)
{
    if (!tls->is_established && (tls->received += length) > TLS_HANDSHAKE_MAX)
        return error_set(error, STATUS_UNAVAILABLE, "TLS: a handshake of more than %u bytes", TLS_HANDSHAKE_MAX);
    if (length > INT_MAX || BIO_write(tls->in, bytes, (int)length) != (int)length) return fail_internal("TLS", error);
    return 0;
}

/* Why a call on ssl has not done what it should; 0: it waits for the peer. */
static int judge(struct tls *tls, int result, struct error *error)
{
    switch (SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        ERR_clear_error();
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        ERR_clear_error();
        return error_set(error, STATUS_UNAVAILABLE, "TLS: the peer has closed the connection");
    default: {
        const long verified = SSL_get_verify_result(tls->ssl);
        tls->fault = fault_of(ERR_peek_error());
        const char *reason = first_reason();
        if (tls->fault == TLS_NOT_SPOKEN)
            return error_set(error, STATUS_UNAVAILABLE, "TLS: what the peer sends is none");
        if (verified != X509_V_OK)
            tls->fault = verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH
                             ? TLS_OTHER_NAME
                             : TLS_UNTRUSTED;
        if (verified != X509_V_OK)
            return error_set(error, STATUS_UNAVAILABLE, "TLS: the peer's certificate: %s",
                             X509_verify_cert_error_string(verified));
        return error_set(error, STATUS_UNAVAILABLE, "TLS: %s", reason);
    }
    }
}

int tls_handshake(struct tls *tls, struct error *error)
{
    ERR_clear_error();
    if (BIO_ctrl_pending(tls->out) > TLS_OUTPUT_MAX)
        return error_set(error, STATUS_UNAVAILABLE, "TLS: the peer makes answers that it does not read");
    if (tls->is_established) return 0;
    const int result = SSL_do_handshake(tls->ssl);
    tls->is_established = result == 1;
    return result == 1 ? 0 : judge(tls, result, error);
}

ssize_t tls_read(struct tls *tls, uint8_t *bytes, size_t capacity, struct error *error)
{
    const int status = tls_handshake(tls, error);
    if (status || !tls->is_established) return status;
    const int length = SSL_read(tls->ssl, bytes, capacity < INT_MAX ? (int)capacity : INT_MAX);
    return length > 0 ? length : judge(tls, length, error);
}

int tls_write(struct tls *tls, const uint8_t *bytes, size_t length, struct error *error)
{
    ERR_clear_error();
    while (length > 0) {
        const int written = SSL_write(tls->ssl, bytes, length < INT_MAX ? (int)length : INT_MAX);
        if (written <= 0) {
            int status = judge(tls, written, error);
            return status ? status : error_set(error, STATUS_INTERNAL, "TLS: nothing can be sent now");
        }
        bytes += written;
        length -= (size_t)written;
    }
    return 0;
}

size_t tls_output(struct tls *tls, uint8_t *bytes, size_t capacity)
{
    const int length = BIO_read(tls->out, bytes, capacity < INT_MAX ? (int)capacity : INT_MAX);
    return length > 0 ? (size_t)length : 0;
}

bool tls_is_established(const struct tls *tls)
{
    return tls->is_established;
}

enum tls_fault tls_fault(const struct tls *tls)
{
    return tls->fault;
}
