/* The startup of a Cortex-M: its stack, and newlib with the host's files (semihosting). */
void _start(void);
extern char __stack[];

struct start {
    char *stack;         /* cppcheck-suppress unusedStructMember */
    void (*reset)(void); /* cppcheck-suppress unusedStructMember */
};

__attribute__((section(".vectors"), used)) static const struct start vectors = {__stack, _start};
