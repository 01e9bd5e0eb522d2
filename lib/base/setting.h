// What a user can set, as errors speak of it. An error holds it as data until somebody knows where
// the value came from: a flag, a variable, a key of a file, an item of a list.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace diptych {

struct Setting {
  std::string name;        // as in the list of fields, or a verb's own flag with _ for -: "width"
  std::string label;       // what it is called where nothing else is known: "--width"
  std::string value = {};  // said behind it, "" = not: "--device cuda"
  bool given = true;       // false: the message asks for it, so no value of it has a place

  static Setting of(std::string_view name, std::string_view value = "");
  static Setting absent(std::string_view name);
  // The same under another label, such as one of two flags.
  Setting called(std::string_view other_label) const;
};

// A text that mentions other settings.
using SettingText = std::vector<std::variant<std::string, Setting>>;

struct SettingProblem {
  Setting setting;
  std::string found;  // a value that may be the default; "" = the text says what was found
  SettingText text;   // behind it: ", expected a multiple of 16"
};

// How the reader of a message sees settings.
struct SettingView {
  std::string place;        // of the value that is wrong: "DIPTYCH_WIDTH", "f.yaml:3:5: width"
  bool is_default = false;  // nobody gave it
};

// "<place>: found 8, expected a multiple of 16". The only function that makes such a message.
std::string problem_text(const SettingProblem& problem, const SettingView& view);

}  // namespace diptych
