//! The part of JSON Schema that docs/schema uses. An unknown keyword is a failure, and so is a key that a schema does not name.

use serde_json::{Map, Value};

pub struct Schema(Value);

impl Schema {
    pub fn new(schema: Value) -> Self {
        Self(schema)
    }

    pub fn text(&self) -> String {
        self.0.to_string()
    }

    pub fn words(&self, definition: &str) -> Vec<String> {
        let words = list(&self.0["$defs"][definition]["oneOf"]).iter().map(|word| &word["const"]);
        words.map(|word| word.as_str().unwrap().to_owned()).collect()
    }

    pub fn problems(&self, value: &Value) -> Vec<String> {
        self.check(&self.0, value, "")
    }

    fn check(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let keywords = schema.as_object().unwrap_or_else(|| panic!("no schema at {at}"));
        let found = keywords.iter().flat_map(|(keyword, wanted)| match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => vec![],
            "$ref" => {
                let name = wanted.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                self.check(&self.0["$defs"][name], value, at)
            }
            "type" => wrong(!is_of(wanted, value), || format!("{at}: {value} is not {wanted}")),
            "const" => wrong(wanted != value, || format!("{at}: {value} is not {wanted}")),
            "enum" => wrong(!list(wanted).contains(value), || format!("{at}: {value} is not in {wanted}")),
            "anyOf" | "oneOf" => {
                let fits =
                    list(wanted).iter().filter(|schema| self.check(schema, value, at).is_empty()).count();
                let is_wrong = if keyword == "oneOf" { fits != 1 } else { fits == 0 };
                wrong(is_wrong, || format!("{at}: {value} fits {fits} of {}", list(wanted).len()))
            }
            "items" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                items.flat_map(|(index, item)| self.check(wanted, item, &format!("{at}[{index}]"))).collect()
            }
            "required" => {
                let Some(object) = value.as_object() else { return vec![] };
                let missing = list(wanted).iter().filter(|key| !object.contains_key(key.as_str().unwrap()));
                missing.map(|key| format!("{at}: {key} is missing")).collect()
            }
            "properties" => self.properties(keywords, value, at),
            "additionalProperties" => {
                let values = value.as_object().into_iter().flatten();
                values.flat_map(|(key, value)| self.check(wanted, value, &format!("{at}.{key}"))).collect()
            }
            other => panic!("{at}: the keyword {other:?} is not known here"),
        });
        found.collect()
    }

    fn properties(&self, keywords: &Map<String, Value>, value: &Value, at: &str) -> Vec<String> {
        let Some(object) = value.as_object() else { return vec![] };
        let is_open = keywords.contains_key("additionalProperties");
        let of_key = |(key, value): (&String, &Value)| match keywords["properties"].get(key) {
            Some(schema) => self.check(schema, value, &format!("{at}.{key}")),
            None => wrong(!is_open, || format!("{at}: the schema does not name {key:?}")),
        };
        object.iter().flat_map(of_key).collect()
    }
}

fn wrong(is_wrong: bool, problem: impl FnOnce() -> String) -> Vec<String> {
    if is_wrong { vec![problem()] } else { vec![] }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn is_of(types: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap() {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("no type {other:?}"),
    };
    types.as_array().map_or_else(|| is(types), |types| types.iter().any(is))
}
