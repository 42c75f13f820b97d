/*
 * A camera that shows 30 pictures a second to the model of `make run`, as frames of a stream of
 * which the newest counts. It has no memory for a picture: each line leaves as it is read. Its
 * transport is the worst there is, a modem that takes one byte at a time.
 *
 *     camera ADDRESS PICTURES
 *
 * PICTURES is a file of pictures of 8x8 pixels, each followed by its label. The first frame shows
 * the token of $SHIVA_TOKEN, if it is set.
 */
#define _POSIX_C_SOURCE 200809L

#include "shiva_posix.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINES = 8, COLUMNS = 8, FRAMES = 30, PER_SECOND = 30, SECONDS = 10 };

static struct shiva_transport wire;
static int superseded; /* frames */

static ptrdiff_t one_byte(void *device, const void *bytes, size_t n)
{
    return wire.send(device, bytes, n > 0);
}

static int64_t milliseconds(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static enum shiva_status show(struct shiva *s, FILE *sensor, int seq)
{
    static const uint32_t shape[] = {LINES, COLUMNS};
    char metadata[256] = "{}";
    unsigned char line[COLUMNS];
    int y;

    shiva_begin(s, 1, strlen("digits"), sizeof metadata);
    shiva_tensor(s, SHIVA_UINT8, 2, shape);
    for (y = 0; y < LINES; y++) {
        if (fread(line, sizeof line, 1, sensor) != 1)
            return shiva_end(s, "digits", NULL); /* SHIVA_SHORT: the sensor stopped */
        shiva_part(s, line, sizeof line);
    }
    fgetc(sensor);
    if (seq == 0 && getenv("SHIVA_TOKEN") != NULL)
        shiva_add_text(metadata, sizeof metadata, "token", getenv("SHIVA_TOKEN"));
    shiva_add_text(metadata, sizeof metadata, "stream", "cam-3");
    shiva_add_text(metadata, sizeof metadata, "keep", "latest");
    shiva_add_number(metadata, sizeof metadata, "seq", seq);
    shiva_add_number(metadata, sizeof metadata, "captured_at", milliseconds(CLOCK_REALTIME));
    return shiva_end(s, "digits", metadata);
}

/* look reads an answer: the digit that the newest frame shows. */
static enum shiva_status look(struct shiva *s, int64_t *label)
{
    struct shiva_answer answer;
    struct shiva_tensor scores, found;
    char metadata[256];
    enum shiva_status status = shiva_answer(s, &answer);

    if (status == SHIVA_OK && answer.tensors == 2) {
        shiva_next(s, &scores, NULL, 0); /* not needed */
        shiva_next(s, &found, NULL, 0);
        shiva_read(s, label, sizeof *label);
    }
    status = shiva_finish(s, metadata, sizeof metadata);
    if (status == SHIVA_REFUSED) {
        const char *type = shiva_member(metadata, "type");

        if (type != NULL && strncmp(type, "\"Superseded\"", 12) == 0) {
            superseded++;
            return SHIVA_OK;
        }
        fprintf(stderr, "camera: %s\n", metadata);
    }
    return status;
}

int main(int argc, char **argv)
{
    FILE *sensor = argc == 3 ? fopen(argv[2], "rb") : NULL;
    int fd = sensor != NULL ? shiva_connect(argv[1], SECONDS) : -1;
    unsigned char buffer[64];
    struct shiva_socket link;
    struct pollfd answers;
    struct shiva_transport modem;
    struct shiva s;
    enum shiva_status status = SHIVA_OK;
    int64_t began = milliseconds(CLOCK_MONOTONIC), label = -1;
    int sent, answered = 0;

    if (argc != 3) {
        fputs("usage: camera ADDRESS PICTURES\n", stderr);
        return 1;
    }
    if (fd < 0) {
        perror(sensor != NULL ? argv[1] : argv[2]);
        return 1;
    }
    answers.fd = fd;
    answers.events = POLLIN;
    modem = wire = shiva_socket(&link, fd, SECONDS);
    modem.send = one_byte;
    shiva_init(&s, modem, buffer, sizeof buffer);
    for (sent = 0; sent < FRAMES && status == SHIVA_OK; sent++) {
        int64_t next = began + (sent + 1) * 1000 / PER_SECOND, left;

        status = show(&s, sensor, sent);
        while (status == SHIVA_OK && (left = next - milliseconds(CLOCK_MONOTONIC)) > 0)
            if (poll(&answers, 1, (int)left) > 0) {
                status = look(&s, &label);
                answered++;
            }
    }
    for (; status == SHIVA_OK && answered < sent; answered++)
        status = look(&s, &label);
    fclose(sensor);
    if (status != SHIVA_OK) {
        fprintf(stderr, "camera: %s\n", shiva_explain(status));
        return 1;
    }
    printf("%d frames, %d superseded\nthe last one shows a %d\n", sent, superseded, (int)label);
    return 0;
}
