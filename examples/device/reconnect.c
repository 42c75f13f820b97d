/* Shows the model of `make run` a picture N times, and connects again when the connection is lost:
   reconnect PICTURE N */
#define _POSIX_C_SOURCE 200809L /* sleep */

#include "shiva_posix.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ask sends the picture, and reads its label. */
static enum shiva_status ask(struct shiva *s, const unsigned char *image, int64_t *label)
{
    static const uint32_t shape[] = {8, 8};
    struct shiva_answer answer;
    struct shiva_tensor tensor;
    char metadata[256];
    enum shiva_status status;

    shiva_begin(s, 1, strlen("digits"), 2);
    shiva_tensor(s, SHIVA_UINT8, 2, shape);
    shiva_part(s, image, 64);
    shiva_end(s, "digits", "{}");
    if (shiva_answer(s, &answer) == SHIVA_OK && answer.tensors == 2) {
        shiva_next(s, &tensor, NULL, 0); /* scores */
        shiva_next(s, &tensor, NULL, 0);
        shiva_read(s, label, sizeof *label);
    }
    status = shiva_finish(s, metadata, sizeof metadata);
    if (status == SHIVA_REFUSED)
        fprintf(stderr, "%s\n", metadata); /* why */
    return status;
}

int main(int argc, char **argv)
{
    FILE *sensor = argc == 3 ? fopen(argv[1], "rb") : NULL;
    unsigned char image[64], buffer[64];
    unsigned pause = 1; /* seconds: then 2, 4, 5, 5, ... */
    int left = argc == 3 ? atoi(argv[2]) : 0;

    if (sensor == NULL || fread(image, sizeof image, 1, sensor) != 1) {
        fputs("reconnect PICTURE N: expected a file of 64 pixels, and a number\n", stderr);
        return 1;
    }
    for (;;) {
        enum shiva_status status = SHIVA_OK;
        struct shiva_socket wire;
        struct shiva s;
        int64_t label;
        int fd = shiva_connect("127.0.0.1:6174", 5);

        if (fd >= 0) {
            shiva_init(&s, shiva_socket(&wire, fd, 5), buffer, sizeof buffer);
            while (left > 0 && (status = ask(&s, image, &label)) == SHIVA_OK) {
                printf("%d\n", (int)label);
                left--;
                pause = 1;
            }
            close(fd);
        }
        if (left == 0)
            return 0;
        fprintf(stderr, "%s\n", fd < 0 ? "no connection" : shiva_explain(status));
        sleep(pause);
        pause = pause < 4 ? pause * 2 : 5;
    }
}
