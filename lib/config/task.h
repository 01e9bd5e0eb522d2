// What a run does, where the user leaves it open, and the defaults that go with it.
#pragma once

#include <string_view>

#include "lib/config/resolve.h"

namespace diptych {

// Settles `auto` by the inputs (a picture among them: edit, else t2i), gives editing what the stage
// config says of it (edit_sampling_params), then the official defaults where nothing was said
// (ByteDance-Seed/Bagel, inference.ipynb: image scale 2.0, interval [0, 1], renorm text_channel),
// makes one answer whatever the number of pictures is, and throws InputError for inputs that do not
// fit the task.
void settle_task(Resolved& resolved);

// That default of editing for a field, as a flag's text; "" where there is none of its own.
std::string_view edit_default(std::string_view field);

}  // namespace diptych
