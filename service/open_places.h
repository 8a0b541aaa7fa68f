/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places for calls that need no credential, health checks and watches, shared among the addresses
 * they come from. Whoever asks gets one: with all taken, the address that has the most loses its
 * oldest, the one that asks counting as if it had one more. So one address can have all of them as
 * long as nobody else wants any, and a check from another finds a place whoever watches.
 *
 * Not safe for threads.
 */
#ifndef MILLRACE_SERVICE_OPEN_PLACES_H
#define MILLRACE_SERVICE_OPEN_PLACES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_open_places mr_open_places;

/* `count` ≥ 1. */
MR_MUST_USE mr_status mr_open_places_create(uint32_t count, mr_open_places **out, mr_error *err);
void mr_open_places_destroy(mr_open_places *places);

/* A place, as a number that no other had, never 0. */
uint64_t mr_open_places_take(mr_open_places *places, const uint8_t address[16]);
/* False once another has it, or it was given back. */
bool mr_open_places_holds(const mr_open_places *places, uint64_t place);
/* One that is not held is none. */
void mr_open_places_give_back(mr_open_places *places, uint64_t place);

#endif
