// How long launched work takes on the device, without the host's part of it.
#pragma once

#include <functional>
#include <span>

#include <c10/core/Device.h>

namespace diptych {

// Milliseconds of one of the works, of which there is at least one: the median of `repeats` replays
// of a CUDA graph in which all stand in turn, at least 16, divided by their number. Each is called
// once before. They are alike, on buffers of their own where a run would not find the same ones in
// the level 2 cache. Throws what a work throws, InputError in a build without CUDA.
double launch_milliseconds(std::span<const std::function<void()>> works, int repeats,
                           c10::Device device);

}  // namespace diptych
