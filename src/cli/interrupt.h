/* interrupt.h - what a signal that ends the program must clean up. */
#ifndef THESPIS_CLI_INTERRUPT_H
#define THESPIS_CLI_INTERRUPT_H

/* From here on SIGINT, SIGTERM and SIGHUP remove the file `part` before they end the program as they always do. NULL is allowed. A
 * part beyond the 128 that can be watched at once stays behind. Returns what cli_unwatch_part takes. */
int cli_watch_part(const char *part);
void cli_unwatch_part(int watch);

#endif
