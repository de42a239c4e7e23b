/* clock.h - time that never runs backwards. */
#ifndef THESPIS_BASE_CLOCK_H
#define THESPIS_BASE_CLOCK_H

/* Seconds since an arbitrary point. */
double th_now(void);

#endif
