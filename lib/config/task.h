// What a run does, where the user leaves it open, and the defaults that go with it.
#pragma once

#include <string>

#include "lib/config/resolve.h"

namespace diptych {

// Settles `auto` as the family's first task that fits the inputs, of those that make what the name
// of the output says (or --format, where it says nothing) if there is one; gives the task what the
// stage config says of it alone, then its own defaults and over them the checkpoint's where nothing
// was said, makes one answer
// whatever the number of pictures is, and throws InputError for inputs that do not fit the task.
void settle_task(Resolved& resolved);

// Gives a request that has no prompt a short one, so that it can be checked; comes before
// settle_task(). Returns whether it did.
bool stand_in_for_prompt(Resolved& resolved);

// The run does this task of its family.
void set_task(RunConfig& run, const Task& task);

// What gives a result of the run its size where flags do not: "the last picture", "the video".
std::string_view sized_by(const RunConfig& run);

}  // namespace diptych
