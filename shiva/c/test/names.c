/*
 * A resolver for the tests, which the linker puts in place of the system's (--wrap=getaddrinfo): a
 * name is its addresses, joined by commas. The address "late" takes two seconds, and is none.
 */
#define _POSIX_C_SOURCE 200809L

#include <netdb.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    struct addrinfo numeric = *hints, **last = found;
    char one[64];
    int fault;

    if (hints->ai_flags & AI_NUMERICHOST)
        return __real_getaddrinfo(host, port, hints, found);
    if (strchr(host, ',') == NULL)
        return EAI_NONAME;
    numeric.ai_flags |= AI_NUMERICHOST;
    *found = NULL;
    while (*host != 0) {
        size_t n = strcspn(host, ",");

        if (n >= sizeof one)
            return EAI_NONAME;
        memcpy(one, host, n);
        one[n] = 0;
        host += host[n] == ',' ? n + 1 : n;
        if (strcmp(one, "late") == 0) {
            sleep(2);
            continue;
        }
        fault = __real_getaddrinfo(one, port, &numeric, last);
        if (fault != 0)
            return fault;
        while (*last != NULL)
            last = &(*last)->ai_next;
    }
    return 0;
}
