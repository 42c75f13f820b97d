/* What a Cortex-M starts with: its stack, and newlib, whose files are those of the host. */
void _start(void);
extern char __stack[];

struct start {
    char *stack;         /* cppcheck-suppress unusedStructMember */
    void (*reset)(void); /* cppcheck-suppress unusedStructMember */
};

__attribute__((section(".vectors"), used)) static const struct start vectors = {__stack, _start};
