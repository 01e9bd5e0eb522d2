// What the two sides of an A/B comparison ask for: "--cfg-mode batched --attention sdpa".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/diptych/request_flags.h"
#include "lib/config/fields.h"

namespace diptych {

// Whether both sides may differ in it: neither in what is asked for, nor in files that are written.
bool is_setting(const Field& field);
// Whether `compare` takes it for both sides.
bool is_of_both_sides(const Field& field);

// The words of a text as a shell splits it: blanks separate them, ' and " hold them together, a
// backslash keeps the next character. Throws InputError "<where>: ..." for an open quote.
std::vector<std::string> split_words(const std::string& text, std::string_view where);

struct SideSettings {
  std::string flag;    // "--a"
  RequestFlags given;  // values and overrides of this side alone
  // What both sides have, with this side's values instead where it has some.
  RequestFlags over(const RequestFlags& both) const;
  // The labels of its flags, "--cfg-scale/--cfg-text-scale".
  std::vector<std::string> labels() const;
};

// `text`: flags of `generate`. Throws InputError "<flag>: ..." for an unknown flag, and for one
// that is no setting.
SideSettings read_settings(const std::string& flag, const std::string& text);

// Throws InputError for a flag of both sides that each of them sets itself.
void refuse_idle_flags(const RequestFlags& both, const SideSettings& a, const SideSettings& b);

}  // namespace diptych
