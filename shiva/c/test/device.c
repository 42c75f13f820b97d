/*
 * A device that executes its arguments in order, on one connection:
 *
 *     device ADDRESS SECONDS [text KEY TEXT] [number KEY NUMBER] [ask ROUTE HEIGHT WIDTH]
 *         [raw HEX] [answer] ...
 *
 * Connecting, a request and an answer wait for SECONDS each; 0: no limit. text and number add metadata to the next ask,
 * which sends a black picture, line by line. raw sends bytes unchanged. answer waits for an answer,
 * and prints its status and metadata.
 */
#include "../shiva_posix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char metadata[256] = "{}";

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 10);
}

static enum shiva_status ask(struct shiva *s, const char *route, uint32_t height, uint32_t width)
{
    static const unsigned char line[4096];
    uint32_t shape[2], y;
    enum shiva_status status;

    shape[0] = height;
    shape[1] = width;
    shiva_begin(s, 1, strlen(route), sizeof metadata);
    shiva_tensor(s, SHIVA_UINT8, 2, shape);
    for (y = 0; y < height; y++)
        shiva_part(s, line, width);
    status = shiva_end(s, route, metadata);
    strcpy(metadata, "{}");
    return status;
}

static enum shiva_status raw(const struct shiva_transport *to, const char *hex)
{
    unsigned char bytes[2048];
    size_t n = strlen(hex) / 2, i;

    for (i = 0; i < n && i < sizeof bytes; i++) {
        char two[3] = {0, 0, 0};

        memcpy(two, hex + 2 * i, 2);
        bytes[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    for (i = 0; i < n;) {
        ptrdiff_t sent = to->send(to->device, bytes + i, n - i);

        if (sent <= 0)
            return SHIVA_IO;
        i += (size_t)sent;
    }
    return SHIVA_OK;
}

static void answer(struct shiva *s)
{
    struct shiva_answer answer;
    char text[2048] = "";
    enum shiva_status status;

    shiva_answer(s, &answer);
    status = shiva_finish(s, text, sizeof text);
    printf("%s: %s\n", shiva_explain(status), text);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    unsigned char buffer[64];
    struct shiva_transport transport;
    struct shiva_socket wire;
    struct shiva s;
    int i, fd = argc > 2 ? shiva_connect(argv[1], number(argv[2])) : -1;

    if (fd < 0) {
        perror("device");
        return 1;
    }
    transport = shiva_socket(&wire, fd, number(argv[2]));
    shiva_init(&s, transport, buffer, sizeof buffer);
    for (i = 3; i < argc;) {
        const char *what = argv[i++];
        int left = argc - i;
        enum shiva_status status = SHIVA_ORDER;

        if (strcmp(what, "answer") == 0) {
            answer(&s);
            status = SHIVA_OK;
        } else if (strcmp(what, "raw") == 0 && left > 0) {
            status = raw(&transport, argv[i]);
            i++;
        } else if (strcmp(what, "text") == 0 && left > 1) {
            status = shiva_add_text(metadata, sizeof metadata, argv[i], argv[i + 1]);
            i += 2;
        } else if (strcmp(what, "number") == 0 && left > 1) {
            status = shiva_add_number(metadata, sizeof metadata, argv[i], number(argv[i + 1]));
            i += 2;
        } else if (strcmp(what, "ask") == 0 && left > 2) {
            status = ask(&s, argv[i], number(argv[i + 1]), number(argv[i + 2]));
            i += 3;
        }
        if (status != SHIVA_OK) {
            printf("%s: %s\n", what, shiva_explain(status));
            return 1;
        }
    }
    return 0;
}
