package main

import (
	"fmt"
	"strconv"
	"strings"
)

// instruction is a statement, `CHECKPOINT name`, `BULK n statement`: the statement n times in one transaction, with
// %d for its number, or `BESIDE statement`: another session runs it, with those before it in turn, while the next
// statement runs, with %d for the number of its run.
type instruction struct {
	text       string
	checkpoint string
	bulk       int
	beside     bool
	statement  string
}

// parseScript splits a script at semicolons outside of quotes and comments.
func parseScript(text string) ([]instruction, error) {
	var instructions []instruction
	for _, statement := range splitStatements(text) {
		parsed := instruction{text: statement, statement: statement}
		words := strings.SplitN(statement, " ", 3)
		switch strings.ToUpper(words[0]) {
		case "CHECKPOINT":
			if len(words) != 2 {
				return nil, fmt.Errorf("CHECKPOINT needs one name: %s", statement)
			}
			parsed.checkpoint = words[1]
		case "BULK":
			times, err := strconv.Atoi(words[1])
			if err != nil || len(words) != 3 {
				return nil, fmt.Errorf("BULK needs a number and a statement: %s", statement)
			}
			parsed.bulk, parsed.statement = times, words[2]
		case "BESIDE":
			parsed.beside, parsed.statement = true, strings.TrimSpace(statement[len(words[0]):])
		}
		instructions = append(instructions, parsed)
	}
	return instructions, nil
}

func splitStatements(text string) []string {
	var statements []string
	var current strings.Builder
	finish := func() {
		if statement := strings.TrimSpace(current.String()); statement != "" {
			statements = append(statements, statement)
		}
		current.Reset()
	}
	for i := 0; i < len(text); i++ {
		switch char := text[i]; {
		case char == '\'' || char == '"' || char == '`':
			end := quoteEnd(text, i)
			current.WriteString(text[i:end])
			i = end - 1
		case strings.HasPrefix(text[i:], "-- "):
			for i < len(text) && text[i] != '\n' {
				i++
			}
			current.WriteByte('\n')
		case char == ';':
			finish()
		default:
			current.WriteByte(char)
		}
	}
	finish()
	return statements
}

func quoteEnd(text string, start int) int {
	for i := start + 1; i < len(text); i++ {
		if text[i] == '\\' && text[start] != '`' {
			i++
		} else if text[i] == text[start] {
			return i + 1 // a doubled quote begins the next quoted part
		}
	}
	return len(text)
}
