/* Sockets for shiva.h, on POSIX systems. */
#ifndef SHIVA_POSIX_H
#define SHIVA_POSIX_H

#include "shiva.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * shiva_connect connects to a server over TCP, "127.0.0.1:6174", "cell.local:6174" or "[::1]:6174",
 * and returns the socket, which the caller must close, or -1 with errno set. Neither connecting to
 * an address nor any later read or write waits longer than this many seconds; 0: no limit. Each
 * address of a name has that time; looking the name up has the resolver's own limits. A server that
 * sends a byte now and then is waited for anew after each: an answer as a whole has no limit.
 */
int shiva_connect(const char *address, unsigned seconds);

/* shiva_socket returns a transport for a connected socket. It never closes the socket. */
struct shiva_transport shiva_socket(int socket);

#ifdef __cplusplus
}
#endif

#endif
