// Classifies one handwritten digit with the model of `make run`.
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>

int main(void) {
    unsigned char head[] = {6, 66, 11, 1, 0, 0, 0, 0, 1, 6, 91, 182,  // header: 1 tensor, 6 bytes of namespace
                            2, 3, 0, 0, 0, 8, 0, 0, 0, 8};            // tensor: rank 2, uint8, 8 x 8
    unsigned char image[64], answer[68];
    FILE *file = fopen("examples/digits/heldout.u8", "rb");
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(6174), .sin_addr = {inet_addr("127.0.0.1")}};
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (!file || fread(image, 64, 1, file) != 1) return perror("examples/digits/heldout.u8"), 1;
    if (connect(server, (void *)&addr, sizeof addr)) return perror("127.0.0.1:6174"), 1;
    send(server, head, sizeof head, MSG_MORE);
    send(server, image, sizeof image, MSG_MORE);
    send(server, "digits", 6, 0);
    // The answer: 12 bytes of header, then scores (rank 1, float32, 10) and label (rank 0, int64).
    if (recv(server, answer, 68, MSG_WAITALL) != 68 || answer[8] != 2) return fputs("digits did not answer\n", stderr), 1;
    printf("%d\n", answer[67]);
}
