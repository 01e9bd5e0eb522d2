#include "lib/base/choices.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

TEST_CASE("a choice is its name and back") {
  for (const std::string_view name : kChoiceNames<StepCacheMode>)
    CHECK(name_of(parse_choice<StepCacheMode>(name).value()) == name);
  CHECK(parse_choice<OffloadWish>("layers") == OffloadWish::layers);
  CHECK(parse_choice<TilingWish>("on") == TilingWish::on);
  CHECK(parse_choice<Renorm>("text_channel") == Renorm::text_channel);
  CHECK(name_of(KernelPolicy::reference) == "reference");
  CHECK_FALSE(parse_choice<Renorm>("local"));
  CHECK_FALSE(parse_choice<Renorm>(""));
}

TEST_CASE("a device is its name and back") {
  for (const char* name : {"auto", "cpu", "cuda", "cuda:0", "cuda:12"})
    CHECK(device_name(parse_device(name).value()) == name);
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:1234", "CPU"})
    CHECK_FALSE(parse_device(name));
}

}  // namespace
}  // namespace diptych
