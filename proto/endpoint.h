/* An address over TCP, as job files, connection.json and command lines have it. */
#ifndef GACC_ENDPOINT_H
#define GACC_ENDPOINT_H

#include <stdbool.h>

struct endpoint {
    char host[256]; /* without brackets */
    char port[8];
};

/* HOST:PORT or [HOST]:PORT, with tcp:// before it or not, PORT a number up to 65535 (a larger one would be taken modulo
 * 65536, and so for somebody else's); false: it is neither, or unix:PATH. */
bool endpoint_parse(struct endpoint *endpoint, const char *text);
/* Of this machine alone: localhost, 127.0.0.0/8 or ::1. Other names are not looked up: they may stand for anything. */
bool endpoint_is_loopback(const struct endpoint *endpoint);

#endif
