// Flags of other programs: none is one of ours, and each says what to do.
#include "lib/config/flag_hints.h"

#include <set>

#include "lib/config/family_fields.h"
#include "lib/pipelines/bagel/family_config.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

const std::vector<const FamilyConfig*> kFamilies = {&bagel_config()};

std::string hint(std::string_view flag) {
  return flag_hint(flag, kFamilies);
}

TEST_CASE("a hint is of a flag that is not there") {
  std::set<std::string> known;
  for (const Field& field : flag_fields(kFamilies)) {
    for (const std::string_view flags : {field.flags, field.aliases}) {
      for (const std::string_view name : long_names(flags)) known.insert("--" + std::string(name));
    }
  }
  for (const std::string& flag : known) {
    CAPTURE(flag);
    CHECK(hint(flag).empty());
  }
  for (const char* flag :
       {"--list-devices", "--threads", "-t", "--init-img", "--strength", "--sampling-method",
        "--scheduler", "--lora-scale", "--fp16", "--frames", "--fps", "-y"}) {
    CAPTURE(flag);
    CHECK_FALSE(known.contains(flag));
    CHECK_FALSE(hint(flag).empty());
  }
  CHECK(hint("--thread").empty());
  CHECK(hint("").empty());
  CHECK(hint("--lora-scale") ==
        "use --lora FILE:SCALE where the model has it; weights of the others are merged with it "
        "first");
}

TEST_CASE("who makes videos is what the families say") {
  CHECK(who_makes(kVideos, kFamilies) ==
        "no model of this version makes videos (bagel: pictures and texts)");
  CHECK(hint("--fps") == who_makes(kVideos, kFamilies));
  CHECK(who_makes("texts", kFamilies) == "texts are made by bagel (--task understand or chat)");
  CHECK(is_video_task("t2v"));
  CHECK_FALSE(is_video_task("t2i"));
  CHECK(is_video_extension(".MP4"));
  CHECK_FALSE(is_video_extension(".png"));
}

}  // namespace
}  // namespace diptych
