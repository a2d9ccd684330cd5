//! The lines of the named cases, as text or JSON.

use std::io;

use serde_json::{Value, json};

use super::timing::Measured;
use super::{Result, one_line};
use crate::table::{print, print_json};

pub struct Lines {
    is_json: bool,
    values: Vec<Value>,
}

impl Lines {
    pub fn new(is_json: bool) -> Self {
        Self { is_json, values: Vec::new() }
    }

    /// Prints the line, or keeps it for [`end`](Self::end).
    pub fn line(
        &mut self,
        peer: &str,
        case: &str,
        threads: usize,
        outcome: Result<Measured>,
    ) -> io::Result<()> {
        let mut fields = vec![("peer", json!(peer)), ("case", json!(case))];
        match outcome {
            Ok(measured) if self.is_json => fields.extend(measured.fields(threads)),
            Err(error) if self.is_json => {
                fields.extend([("threads", json!(threads)), ("error", json!(one_line(&error)))]);
            }
            outcome => {
                let rest = match outcome {
                    Ok(measured) => measured.line(threads),
                    Err(error) => format!("threads={threads} error={}", one_line(&error)),
                };
                return print(&format!("peer={peer} case={case} {rest}\n"));
            }
        }
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
        self.values.push(Value::Object(fields.collect()));
        Ok(())
    }

    pub fn end(self) -> io::Result<()> {
        if self.is_json { print_json(&Value::Array(self.values)) } else { Ok(()) }
    }
}
