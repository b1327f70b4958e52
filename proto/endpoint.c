#include "proto/endpoint.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MOST 5 /* of 65535 */

static bool is_port(const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits <= DIGITS_MOST && !text[digits] && atoi(text) <= UINT16_MAX;
}

bool endpoint_parse(struct endpoint *endpoint, const char *text)
{
    if (!strncmp(text, "unix:", 5)) return false;
    if (!strncmp(text, "tcp://", 6)) text += 6;
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (length >= 2 && text[0] == '[' && text[length - 1] == ']') text++, length -= 2;
    if (!colon || length == 0 || length >= sizeof endpoint->host || !is_port(colon + 1)) return false;
    snprintf(endpoint->host, sizeof endpoint->host, "%.*s", (int)length, text);
    snprintf(endpoint->port, sizeof endpoint->port, "%s", colon + 1);
    return true;
}

bool endpoint_is_loopback(const struct endpoint *endpoint)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, endpoint->host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, endpoint->host, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
    return !strcmp(endpoint->host, "localhost");
}
